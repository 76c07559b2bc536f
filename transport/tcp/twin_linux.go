package tcp

import "github.com/gollective/gollective/transport"

// The links between two ranks, one for each way, are twins: of the same channel, use
// and protocol. Each begins with a connection of its own; the one from the higher
// rank moves over to the other's connection as soon as that is there, with a frame
// that says so (lastFrameKind) and is the last over the first connection.
//
// What flows both ways acknowledges itself. A connection that is used one way only
// has every small message answered by a segment without data, which costs the
// receiver's processor a quarter of what the message did (6.9 us for an exchange of
// 28 bytes over two connections, 5.2 over one). In everything else the ways are as
// independent as before: each has its window, and its end.
//
// Point-to-point links don't move over. A socket that is closed with bytes unread
// takes down the way back, too. In collectives whoever closes has read what it was
// sent before the other could have finished; of messages that is not sure.

// back is the link of the way back.
func back(l transport.Link) transport.Link {
	l.From, l.To = l.To, l.From
	return l
}

// turnable reports whether l may move over to its twin's connection.
func turnable(l transport.Link) bool { return l.Use == transport.Collective && l.From > l.To }

// pairUp makes x and r twins. The caller holds their station's lock.
func pairUp(x *sender, r *receiver) { x.twin, r.twin = r, x }
