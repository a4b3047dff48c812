a :: Message("),", ')' /* ) */, \<29 2C 28 /* > */>, // )
 "\")\" \\", x(y,z)w, , b,);
# 77 "other.click"
Idle -> b/c :: Classifier(12/0800 /* IP */ 30/01??, -)
  -> Discard; b/c [1]
 -> Discard;
#line 3
1x :: Idle;
