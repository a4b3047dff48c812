a -> ;
b :: { x -> [y] z; u :: ; -> } -> c;
d ( 1 ) e :: f $g;
) k;
-> l;
elementclass { }
m [1-] -> n (unclosed;
