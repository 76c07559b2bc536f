// Package sequential says what a collective must do, for tests: one loop over
// ranks, one element after the other, rank 0 first. It shares no code with what it
// is compared with; in particular it has its own idea of the element formats
// (element.go).
package sequential

import (
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

// Call is one collective over all ranks.
type Call struct {
	Kind  plan.Kind
	Type  dtype.Type
	Op    reduce.Op
	Count int // NCCL's meaning: see collective.Call
	// Root is the root, or for Send the distance that every message travels:
	// rank r sends to r+Root and receives from r-Root.
	Root    int
	Scalars []uint64 // of PreMulSum, the bits of one element per rank

	// Of an AlltoAllv, in elements: Counts[p][q] go from rank p to rank q,
	// from SendOffsets[p][q] of p's buffer to RecvOffsets[q][p] of q's.
	Counts, SendOffsets, RecvOffsets [][]int
}

// Piece is a range of a receive buffer and what it must hold afterwards. All
// other bytes must be as before.
type Piece struct {
	Offset int // bytes
	Data   []byte
}

// Received is what the call stores in rank's receive buffer, given all ranks' send
// buffers.
func (c Call) Received(rank int, send [][]byte) []Piece {
	n, block := len(send), c.Count*c.Type.Size()
	all := func(data []byte) []Piece { return []Piece{{0, data}} }
	switch c.Kind {
	case plan.AllReduce:
		return all(c.reduce(send, 0))
	case plan.Reduce:
		if rank == c.Root {
			return all(c.reduce(send, 0))
		}
	case plan.Broadcast:
		return all(send[c.Root][:block])
	case plan.AllGather:
		return all(concatenate(send, block))
	case plan.ReduceScatter:
		return all(c.reduce(send, rank*block))
	case plan.AlltoAll:
		var data []byte
		for _, from := range send {
			data = append(data, from[rank*block:(rank+1)*block]...)
		}
		return all(data)
	case plan.AlltoAllv:
		return c.vectors(rank, send)
	case plan.Gather:
		if rank == c.Root {
			return all(concatenate(send, block))
		}
	case plan.Scatter:
		return all(send[c.Root][rank*block : (rank+1)*block])
	case plan.Send:
		return all(send[(rank-c.Root%n+n)%n][:block])
	}
	return nil
}

// SendBytes and RecvBytes are the sizes of rank's buffers among n; 0 where the
// call does not look at one.
func (c Call) SendBytes(rank, n int) int {
	blocks := 1
	switch c.Kind {
	case plan.Barrier:
		blocks = 0
	case plan.ReduceScatter, plan.AlltoAll:
		blocks = n
	case plan.AlltoAllv:
		return c.extent(c.Counts[rank], c.SendOffsets[rank])
	case plan.Broadcast:
		blocks = atRoot(rank == c.Root, 1)
	case plan.Scatter:
		blocks = atRoot(rank == c.Root, n)
	}
	return blocks * c.Count * c.Type.Size()
}

func (c Call) RecvBytes(rank, n int) int {
	blocks := 1
	switch c.Kind {
	case plan.Barrier:
		blocks = 0
	case plan.AllGather, plan.AlltoAll:
		blocks = n
	case plan.AlltoAllv:
		return c.extent(c.CountsTo(rank), c.RecvOffsets[rank])
	case plan.Reduce:
		blocks = atRoot(rank == c.Root, 1)
	case plan.Gather:
		blocks = atRoot(rank == c.Root, n)
	}
	return blocks * c.Count * c.Type.Size()
}

// CountsTo is what rank receives from each rank in an AlltoAllv.
func (c Call) CountsTo(rank int) []int {
	counts := make([]int, len(c.Counts))
	for from := range counts {
		counts[from] = c.Counts[from][rank]
	}
	return counts
}

// extent is the size in bytes of a buffer with the given ranges.
func (c Call) extent(counts, offsets []int) int {
	end := 0
	for i, count := range counts {
		end = max(end, offsets[i]+count)
	}
	return end * c.Type.Size()
}

func atRoot(here bool, blocks int) int {
	if here {
		return blocks
	}
	return 0
}

func concatenate(send [][]byte, block int) []byte {
	var data []byte
	for _, from := range send {
		data = append(data, from[:block]...)
	}
	return data
}

func (c Call) vectors(rank int, send [][]byte) []Piece {
	var pieces []Piece
	size := c.Type.Size()
	for from := range send {
		begin, bytes := c.SendOffsets[from][rank]*size, c.Counts[from][rank]*size
		pieces = append(pieces, Piece{c.RecvOffsets[rank][from] * size, send[from][begin : begin+bytes]})
	}
	return pieces
}

// reduce combines the Count elements at byte offset of all send buffers.
func (c Call) reduce(send [][]byte, offset int) []byte {
	size := c.Type.Size()
	result := make([]byte, c.Count*size)
	for i := range c.Count {
		at := offset + i*size
		put(result[i*size:], size, c.element(send, at, size))
	}
	return result
}

func (c Call) element(send [][]byte, at, size int) uint64 {
	f := formatOf(c.Type)
	total := c.scaled(f, 0, get(send[0][at:], size), len(send))
	for rank := 1; rank < len(send); rank++ {
		total = f.combine(c.Op, total, c.scaled(f, rank, get(send[rank][at:], size), len(send)))
	}
	if c.Op == reduce.Avg && !f.float {
		return f.quotient(total, len(send))
	}
	return total
}

// scaled is rank's element as it enters the reduction of n ranks.
func (c Call) scaled(f format, rank int, bits uint64, n int) uint64 {
	switch {
	case c.Op == reduce.PreMulSum:
		return f.combine(reduce.Prod, bits, c.Scalars[rank])
	case c.Op == reduce.Avg && f.float:
		return f.combine(reduce.Prod, bits, f.round(1/float64(n)))
	}
	return bits
}
