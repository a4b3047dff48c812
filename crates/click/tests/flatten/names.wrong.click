a, b :: Idle;
b :: Discard;
a(3) -> Idle :: Idle;
elementclass a { }
12 :: Idle;
x :: { $p, $p | Idle };
define($v 1, $v 2, w);
a [1] -> c :: Idle [1];
[3] b -> a;
a [1,2] -> [3,4] b;
a [1,2] => [3,4,5] b;
a [] => [] b;
