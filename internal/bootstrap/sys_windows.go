package bootstrap

import "net"

// glance sees nothing here: the root learns of a rank that dies while the
// others join from that rank's neighbours, and from the deadline.
func glance(net.Conn) (readable, gone bool) { return false, false }
