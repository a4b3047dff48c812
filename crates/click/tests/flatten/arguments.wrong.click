elementclass C { $a, KEY $b | Idle || $a | input -> Discard }
C;
C(1) -> Idle;
Idle -> C(1);
elementclass D { $a | Idle }
D(1, 2);
