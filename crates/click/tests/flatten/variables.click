require(package "one", two);
define($net 10.0.0.0/8, $words one two three, $quoted "a, b", $both $net $words);
elementclass Scoped {
  $x, KEY $k |
  define($y $x-$net);
  elementclass Deep { $z | Message("$z $x $y ${k} ${none-$k}") }
  Deep($x);
  Message('$x', ${words[1]}, $undefined, \$x "\$x", $net // $x
  , /* $x */ $quoted);
}
Scoped(KEY 1 , KEY 2);
s :: Scoped("q\"r", KEY $both);
define($late 5);
Message($late, "$quoted");
