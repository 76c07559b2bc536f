package plan_test

import (
	"fmt"
	"slices"

	"github.com/gollective/gollective/collective/plan"
)

// What a call must do, written without looking at how it is done.

// allocate makes a rank's buffers of a call: the input marked element by element
// as the rank's contribution, in place where the call says so.
func (s *simulation) allocate(rank, i int) buffers {
	call := s.calls[i]
	spec, n := call.spec, call.spec.Count
	sendLen, recvLen := n, n
	switch spec.Kind {
	case plan.AllGather, plan.Gather:
		recvLen = n * s.size
	case plan.ReduceScatter, plan.Scatter:
		sendLen = n * s.size
	case plan.AlltoAll:
		sendLen, recvLen = n*s.size, n*s.size
	case plan.Barrier:
		sendLen, recvLen = 1, 1
	}
	if call.group != nil || call.vectors != nil {
		sendLen, recvLen = call.bytes, call.bytes
	}
	b := buffers{send: make([]value, sendLen), recv: make([]value, recvLen)}
	if spec.InPlace {
		switch spec.Kind {
		case plan.AllGather:
			b.send = b.recv[rank*n : (rank+1)*n]
		case plan.ReduceScatter:
			b.recv = b.send[rank*n : (rank+1)*n]
		case plan.Gather:
			if rank == spec.Root {
				b.send = b.recv[rank*n : (rank+1)*n]
			}
		case plan.Scatter:
			if rank == spec.Root {
				b.recv = b.send[rank*n : (rank+1)*n]
			}
		default:
			b.recv = b.send
		}
	}
	for e := range b.send {
		b.send[e] = value{from: 1 << rank, at: uint32(e), call: uint16(i)}
	}
	b.input, b.output = slices.Clone(b.send), slices.Clone(b.recv)
	return b
}

// check compares every rank's buffers with the model, and the FIFOs with empty
// ones.
func (s *simulation) check() error {
	for _, f := range s.fifos {
		if f.head != f.tail {
			return fmt.Errorf("FIFO %+v ends with head %d, tail %d", f.key, f.head, f.tail)
		}
	}
	for i, call := range s.calls {
		for rank := range s.size {
			b := s.buffers[rank][i]
			want := s.want(rank, i)
			for e, got := range b.recv {
				if got != want[e] {
					return fmt.Errorf("call %d %v: rank %d recv[%d] is %+v, want %+v", i, call.spec, rank, e, got, want[e])
				}
			}
			for e, got := range b.send {
				own := call.spec.Kind != plan.ReduceScatter && call.spec.Kind != plan.Scatter || e/max(1, call.spec.Count) == rank
				if got != b.input[e] && !(call.spec.InPlace && own) {
					return fmt.Errorf("call %d %v: rank %d changed send[%d] to %+v", i, call.spec, rank, e, got)
				}
			}
		}
	}
	return nil
}

// want is what a rank's receive buffer must hold after call i: what it held
// before where the call must leave it alone.
func (s *simulation) want(rank, i int) []value {
	want := slices.Clone(s.buffers[rank][i].output)
	if s.calls[i].group != nil || s.calls[i].vectors != nil {
		s.wantMessages(want, rank, i)
		return want
	}
	for e := range want {
		if v, written := s.wantElement(rank, i, e); written {
			want[e] = v
		}
	}
	return want
}

// wantElement is element e of the result of a collective; written is false where
// the call must leave it alone.
func (s *simulation) wantElement(rank, i, e int) (v value, written bool) {
	spec := s.calls[i].spec
	n := spec.Count
	from := func(src, at int) (value, bool) {
		return value{from: 1 << src, at: uint32(at), call: uint16(i)}, true
	}
	reduced := func(at int) (value, bool) {
		v := value{from: 1<<s.size - 1, at: uint32(at), call: uint16(i), final: 1}
		if s.size == 1 {
			v.final = 0 // the caller's copy is not part of the plan
		}
		return v, true
	}
	switch spec.Kind {
	case plan.AllReduce, plan.Barrier:
		return reduced(e)
	case plan.Reduce:
		if rank == spec.Root {
			return reduced(e)
		}
	case plan.Broadcast:
		return from(spec.Root, e)
	case plan.AllGather:
		return from(e/n, e%n)
	case plan.ReduceScatter:
		return reduced(rank*n + e)
	case plan.AlltoAll:
		return from(e/n, rank*n+e%n)
	case plan.Gather:
		if rank == spec.Root {
			return from(e/n, e%n)
		}
	case plan.Scatter:
		return from(spec.Root, rank*n+e)
	}
	return value{}, false
}

// wantMessages matches the k-th message that a peer sends to rank with the k-th
// that rank receives from the peer.
func (s *simulation) wantMessages(want []value, rank, i int) {
	received := s.messages(rank, i)
	for peer := range s.size {
		var sends, recvs []plan.Message
		for _, m := range s.messages(peer, i) {
			if m.Send && m.Peer == rank {
				sends = append(sends, m)
			}
		}
		for _, m := range received {
			if !m.Send && m.Peer == peer {
				recvs = append(recvs, m)
			}
		}
		for k, m := range recvs {
			for e := range m.Bytes {
				want[m.Offset+e] = value{from: 1 << peer, at: uint32(sends[k].Offset + e), call: uint16(i)}
			}
		}
	}
}

// messages is what a rank asks for in a group or an AlltoAllv of bytes.
func (s *simulation) messages(rank, i int) []plan.Message {
	call := s.calls[i]
	if call.group != nil {
		return call.group(rank)
	}
	v := call.vectors(rank)
	var msgs []plan.Message
	for p := range s.size {
		msgs = append(msgs,
			plan.Message{Peer: p, Send: true, Offset: v.SendOffsets[p], Bytes: v.SendCounts[p]},
			plan.Message{Peer: p, Offset: v.RecvOffsets[p], Bytes: v.RecvCounts[p]})
	}
	return msgs
}
