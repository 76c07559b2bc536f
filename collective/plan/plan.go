// Package plan turns a collective call into a schedule: a plain value that says,
// channel by channel and step by step, which primitive a rank executes on which
// piece of its buffers. Nothing here moves a byte, starts a goroutine or waits;
// the same value is printed, compared with golden files, simulated and run.
//
// Vocabulary. A call is cut into parts, one per channel. A part is processed in
// loops; each loop moves one or several chunks; a chunk is what one primitive
// handles. Counts and offsets are in elements unless a name says bytes.
package plan

import (
	"github.com/gollective/gollective/collective/topo"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

// Kind is the operation a call asks for.
type Kind uint8

const (
	AllReduce Kind = iota
	Reduce
	Broadcast
	AllGather
	ReduceScatter
	AlltoAll
	AlltoAllv
	Gather
	Scatter
	Send
	Recv
	Barrier
	kindsCount
)

// Algorithm is a family of schedules.
type Algorithm uint8

const (
	AutoAlgorithm Algorithm = iota
	Ring
	Tree
	PointToPoint // the only one for AlltoAll, AlltoAllv, Gather, Scatter, Send, Recv
	OneShot
	TwoShot
	algorithmsCount
)

// Protocol is how data get from rank to rank; see package proto.
type Protocol uint8

const (
	AutoProtocol Protocol = iota
	Simple
	LL
	LL128
	Direct // no FIFO: see direct.go
)

// Spec is one call as every rank must make it. Two ranks that pass different
// Specs to the same call of a communicator have made a mistake, which is
// reported; InPlace alone may differ.
//
// Count is NCCL's: elements of the whole buffer for AllReduce, Reduce and
// Broadcast, of one rank's block for AllGather, ReduceScatter, AlltoAll, Gather
// and Scatter, of the message for Send and Recv.
type Spec struct {
	Kind    Kind
	Type    dtype.Type
	Op      reduce.Op // reductions only, else Sum
	Count   int
	Root    int // Reduce, Broadcast, Gather, Scatter; the peer of Send and Recv; else 0
	InPlace bool
}

// Choice is what was decided for a Spec: by Choose, or by the caller's force.
type Choice struct {
	Algorithm Algorithm
	Protocol  Protocol
	// Channels is how many channels take part, at least 1. For messages it is
	// how many they are spread over, of which a rank may use some.
	Channels int
}

// World is what a plan depends on besides the call. It is the same on all ranks
// but for Rank.
type World struct {
	Rank, Size int

	// Hosts says which ranks share a machine: hops inside it go through memory,
	// hops between machines over the wire. Nil means that all do.
	Hosts *topo.Hosts
	// Carried says that also hops inside a host go over the wire.
	Carried bool

	// RanksPerNode makes nodes of so many ranks of a host: rings pass through a
	// node once, trees are laid over nodes with a chain inside. 0 makes each
	// host one node. A host's last node may be smaller.
	RanksPerNode int

	// MinChannels and MaxChannels bound the channels of large calls, and
	// MaxChannels also a forced number; as in NCCL, small calls use fewer than
	// MinChannels. MaxChannels 0 stands for the larger of MinChannels, the
	// forced number and 1.
	MinChannels, MaxChannels int

	// Cores is how many blocks can run at the same time on a host, and Sharers
	// how many ranks run theirs there. Where hosts differ, both describe the one
	// that counts: whose ranks have the fewest cores each (Hosts.MostCrowded).
	// Cores 0 stands for as many as there are blocks, Sharers 0 for the ranks of
	// the largest host.
	Cores, Sharers int

	// Payload is the number of user bytes that fit in one FIFO step, by
	// protocol (AutoProtocol unused). P2PPayload is the same for the
	// point-to-point connections (Simple and LL).
	Payload, P2PPayload [4]int

	// Force overrides the choice where a field is not zero.
	Force Choice
	// Allowed narrows the choice where Force has a zero.
	Allowed Allowed

	// Tuning decides instead of the model where one of its rules fits, as far as
	// Force, Allowed and Reproducible leave that open.
	Tuning *Tuning

	// Reproducible restricts reductions whose bits depend on the order in which
	// inputs are combined to schedules that do so in the order of the ranks.
	Reproducible bool

	// Sight is how much of each other's memory the ranks see, and DeskPayload how many
	// bytes of payload a desk takes.
	Sight       Sight
	DeskPayload int

	// OrderedStores reports that stores to the FIFOs' memory are seen in the
	// order they were made, which LL and LL128 need.
	OrderedStores bool
}

// Plan is what one rank does for one call. A call of one rank, or one that moves
// nothing, has no channels; the channels of messages may have gaps in their IDs.
type Plan struct {
	Spec     Spec
	Choice   Choice
	Rank     int
	Size     int
	Hosts    *topo.Hosts // nil if there is one
	Channels []Channel

	instead Protocol
}

// Channel is the work of one block.
type Channel struct {
	ID int

	// Threads are the pipelines of the channel. It has one, two for a tree
	// (its reduce half and its broadcast half), or one per root. Concurrent says
	// that they must make progress together; otherwise one runs after the
	// other, as when a single chunk passes through the tree.
	Threads    []Thread
	Concurrent bool

	// Direct is set instead of the above where ranks use each other's memory. Threads
	// may then have what to do if some of it turns out not to be in sight.
	Direct *Sharing

	// Transfers are the messages of a point-to-point plan, in the order in
	// which they should be started. All of them may progress at once, except
	// that those of one peer and direction keep their order.
	Transfers []Transfer
	// Copies are the messages of a rank to itself.
	Copies []Copy
}

// Thread is one pipeline of chunks: the same Steps for each loop.
type Thread struct {
	Name     string // "ring", "reduce", "broadcast", "root" or "oneshot"
	From, To []int  // ranks received from, in order of reduction, and sent to
	// Own is how many ranks of From come before this rank itself in the order of
	// reduction.
	Own int
	// Overwrites says that a result may be stored over the input before the
	// input has left: they share memory, and no result waits for that.
	Overwrites bool

	// [Begin,End) is the channel's part of a block of the buffers. Loop l
	// covers Chunk*Chunks elements from Begin+l*Chunk*Chunks on; the last
	// loop uses chunks of Last elements.
	Begin, End  int
	Chunk, Last int

	// Chunks is how many chunks lie side by side in one loop: the number of
	// ranks for a ring AllReduce, otherwise 1.
	Chunks int

	// Stride is the distance between the buffers' blocks where blocks belong
	// to ranks (AllGather, ReduceScatter); 0 where a block number counts
	// chunks of the loop.
	Stride int

	// ChunkSteps and SliceSteps are the FIFO steps a chunk and a slice take
	// in the Simple protocol; 1 and 1 in LL and LL128. A chunk always takes
	// all its steps, also when it is short or empty, and fits in
	// ChunkSteps/SliceSteps slices of whole elements.
	ChunkSteps, SliceSteps int

	Steps []Step
}

// Step is one primitive on one chunk. In and Out number blocks (see
// Thread.Range) of the send and the receive buffer; None means that the
// primitive does not touch that buffer. Where both are given their pieces have
// equal lengths. A buffer that holds one rank's block only (the send buffer of
// AllGather, the receive buffer of ReduceScatter) is addressed as block 0.
type Step struct {
	Action  Action
	In, Out int
}

// None is the block number of a buffer that a step does not touch.
const None = -1

// Action names a primitive. The verbs are NCCL's (src/device/primitives.h): recv
// takes from the FIFO of every rank in From, send puts into the FIFO of every
// rank in To, copy stores in the output, reduce combines with the input.
type Action uint8

const (
	DoSend Action = iota
	DoSendFromOutput
	DoRecv
	DoCopySend
	DoRecvCopySend
	DoRecvReduceSend
	DoRecvReduceCopy     // the value is final: Kernel.Post applies
	DoRecvReduceCopySend // the value is final: Kernel.Post applies
)

// Message is a request for point-to-point traffic: one direction of one call of
// a launch. Offset and Bytes are in bytes of that call's buffer.
type Message struct {
	Call   int // index of the call in the launch
	Peer   int
	Send   bool
	Offset int
	Bytes  int
}

// Transfer is one channel's part of a Message.
type Transfer struct {
	Message       // Offset and Bytes are the part's
	Total    int  // bytes of the whole message
	Round    int  // round of the permutation schedule
	Epoch    int  // how many earlier messages of the launch have the same peer and direction
	First    bool // the part that opens the message: its first slot carries the header
	Protocol Protocol
	Chunk    int // bytes per chunk
}

// Copy is a message of a rank to itself.
type Copy struct {
	From, To             int // indices of the sending and the receiving call
	FromOffset, ToOffset int
	Bytes                int
}
