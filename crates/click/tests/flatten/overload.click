elementclass Foo {
   $a, $b | input -> Print(1, $a, $b) -> output
|| $a, __REST__ $b | input -> Print(2, $b) -> output
|| $a, TWO $b, __REST__ $c | input -> Print(3, $b, $c) -> output
|| $a, $b | input -> Print(two, $a) -> output; input [1] -> Discard
}
s :: Idle -> Foo(A) -> f :: Foo(A, TWO B);
elementclass Foo { $a, $b | input -> Print(4, "$a") -> output || ... }
f -> Foo(A, B) -> Foo(A, B, C) -> Discard;
s [1] -> g :: Foo(1, 2) -> Discard; s [2] -> [1] g;
// `...` is looked up in the alternative before it first.
elementclass Bar { input -> Paint(9) -> output }
elementclass Bar { $a | elementclass Bar { input -> Paint(8) -> output } input -> Bar -> output || ... }
Idle -> Bar -> Discard; Idle -> Bar(1) -> Discard;
