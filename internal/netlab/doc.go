// Package netlab makes hosts for tests: network namespaces, each joined by a pair of
// veth interfaces to a bridge in a namespace of its own, so that nothing of a lab is
// seen in the namespace of the test and labs of several processes never meet.
//
//	host0              switch               host1
//	eth0 ──────── port0 ─ bridge ─ port1 ──────── eth0
//	10.77.0.1                                10.77.0.2
//	fd77::1                                  fd77::2
//
// What can go wrong between hosts is done with what every kernel has that has
// namespaces, not with modules that many lack (netem) or tools that must be installed
// first (nft):
//
//	rate                 tc's token buckets, at both ends of the cable
//	delay, loss, order   a cable that this process carries frames along
//	partition            a neighbour entry with an address that no host has
//	dropped flows        routing rules for the ports of the flows, to the same address
//	unplugged host       a port that belongs to no bridge
//
// In each case packets vanish: nothing answers with RST or ICMP, no interface goes
// down.
//
// Linux, root and iproute2 are needed; New skips the test where one is missing.
package netlab
