elementclass One { input -> output; input [2] -> Discard }
elementclass Two { input -> Null -> output }
a :: Idle -> t :: Two; a [1] -> [1] t; t [2] -> b :: Idle;
