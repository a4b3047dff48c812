// Two interfaces and a route table, with everything that IP needs between them.
AddressInfo(left 10.0.0.1/24 02:00:00:00:00:01, right 10.0.1.1/24 02:00:00:00:00:02);
elementclass Port { $name, $device |
  from :: FromDevice($device) -> c :: Classifier(12/0806 20/0001, 12/0806 20/0002, 12/0800, -);
  c [0] -> ARPResponder($name) -> out :: Queue(200) -> ToDevice($device);
  c [1] -> [1] arp :: ARPQuerier($name);
  c [2] -> Strip(14) -> CheckIPHeader -> GetIPAddress(16) -> output;
  c [3] -> Discard;
  input -> DropBroadcasts -> cp :: PaintTee(1) -> IPGWOptions($name) -> FixIPSrc($name)
    -> dt :: DecIPTTL -> IPFragmenter(1500) -> [0] arp -> out;
  cp [1] -> ICMPError($name, redirect, host) -> [1] output;
  dt [1] -> ICMPError($name, timeexceeded) -> [1] output;
}
rt :: StaticIPLookup(10.0.0.1/32 0, 10.0.1.1/32 0, 10.0.0.0/24 1, 10.0.1.0/24 2);
rt [0] -> EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> Discard;
rt [1] -> left :: Port(left, eth0) -> rt;
rt [2] -> right :: Port(right, eth1) -> rt;
left [1], right [1] -> rt;
