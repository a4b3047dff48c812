// An IP router with two interfaces, in the form of Click's make-ip-conf.pl:
//   turnpike check --click examples/click/ip-router.click
//   turnpike convert click examples/click/ip-router.click

elementclass Interface { $device, $ip, $eth, $paint |
    c :: Classifier(12/0806 20/0001, 12/0806 20/0002, 12/0800, -);
    FromDevice($device) -> c;
    queue :: Queue(200) -> ToDevice($device);
    querier :: ARPQuerier($ip, $eth) -> queue;

    c[0] -> ARPResponder($ip $eth) -> queue;
    c[1] -> replies :: Tee(2);
    replies[0] -> [1]querier;
    replies[1] -> [1]output;
    c[2] -> Paint($paint) -> [0]output;
    c[3] -> Print("$device not IP") -> Discard;

    input -> DropBroadcasts
        -> paint :: PaintTee($paint)
        -> options :: IPGWOptions($ip)
        -> FixIPSrc($ip)
        -> ttl :: DecIPTTL
        -> fragmenter :: IPFragmenter(1500)
        -> querier;
    paint[1] -> ICMPError($ip, redirect, host) -> [2]output;
    options[1] -> ICMPError($ip, parameterproblem) -> [2]output;
    ttl[1] -> ICMPError($ip, timeexceeded) -> [2]output;
    fragmenter[1] -> ICMPError($ip, unreachable, needfrag) -> [2]output;
}

left :: Interface(eth1, 10.0.1.1, 02:00:00:00:01:01, 1);
right :: Interface(eth2, 10.0.2.1, 02:00:00:00:02:01, 2);
host :: ToHost;

table :: StaticIPLookup(
    10.0.1.1/32 0, 10.0.1.255/32 0, 10.0.1.0/32 0,
    10.0.2.1/32 0, 10.0.2.255/32 0, 10.0.2.0/32 0,
    10.0.1.0/24 1,
    10.0.2.0/24 2,
    255.255.255.255/32 0.0.0.0 0, 0.0.0.0/32 0,
    198.51.100.0/24 10.0.2.2 2);

ip :: Strip(14)
    -> CheckIPHeader(INTERFACES 10.0.1.1/24 10.0.2.1/24)
    -> table;
left[0], right[0] => ip, ip;
left[1], right[1] => host, host;
left[2], right[2] => table, table;

table[0] -> EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> host;
table[1] -> left;
table[2] -> right;
