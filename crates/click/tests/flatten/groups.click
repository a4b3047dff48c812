// Groups, ports, and both arrows.
// Idle elements have any ports.
a, b, c, d :: Idle;
p, q :: PullNull;
a, a[1] -> b -> p, q;
p -> [0]c, [1]c; q -> [2]c;
a [2-4] => ( -> [5]c ), ( -> Paint(1) -> [6] c ), d;
x :: Idle => [1] b [1], (-> y :: Idle => (->), Paint(2) ->) -> z :: Idle;
c [] => [0,1,2,3] d;
d [0,1] => [7,] c;
