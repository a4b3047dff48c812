elementclass Two { input -> Null -> output }
a :: Idle -> t :: Two; a [1] -> [1] t; u :: Two; t [2] -> b :: Idle;
