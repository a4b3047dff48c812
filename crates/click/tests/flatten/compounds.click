/* Compound elements in compound elements,
   with and without names. */
elementclass Inner { input -> Null -> q :: Queue(10) -> [0] output; q [1] -> [1] output; }
elementclass Outer {
  input [0] -> i :: Inner -> u :: Unqueue -> j :: Inner -> [0] output;
  i [1] -> Discard; Idle -> Inner => Discard, Discard;
  j [1] -> d :: { [0] -> Counter -> Counter -> Discard };
  input [1] -> Discard;
}
elementclass Other Outer
Idle, Idle => o :: Outer -> Discard;
a :: Idle -> x :: Other -> { -> Strip(14) -> } -> Discard;
a [1] -> [1] x;
Idle -> Idle -> Idle@1 :: Idle;
