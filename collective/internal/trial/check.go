package trial

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/gollective/gollective/collective/internal/sequential"
	"github.com/gollective/gollective/collective/plan"
)

// Check compares all memory with what it must hold after the call: the receive
// ranges what the model says, everything else what it held before. For Arbitrary
// data it only compares the ranks' results with each other.
func (t *Trial) Check() error {
	all := make([]int, t.n)
	for rank := range all {
		all[rank] = rank
	}
	return t.CheckOf(all)
}

// CheckOf is Check of the memory of some ranks.
func (t *Trial) CheckOf(ranks []int) error {
	var errs []error
	var shared *sequential.Piece
	for _, rank := range ranks {
		pieces, err := t.expected(rank, &shared)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r, s := t.recv[rank], t.send[rank]
		if r != nil {
			errs = append(errs, t.compare("receive buffer", rank, r, pieces))
		}
		if s != nil && (r == nil || &r.around[0] != &s.around[0]) {
			errs = append(errs, t.compare("send buffer", rank, s, nil))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%+v over %d ranks: %w", t.Case, t.n, err)
	}
	return nil
}

// expected is what rank must have received. A result that all ranks share is
// computed once.
func (t *Trial) expected(rank int, shared **sequential.Piece) ([]sequential.Piece, error) {
	if t.Arbitrary && t.reduces() {
		// What was received is right by definition, but for AllReduce, where
		// it must be what rank 0 received.
		from := rank
		if t.Kind == plan.AllReduce {
			from = 0
		}
		if t.recv[from] == nil {
			return nil, nil
		}
		return []sequential.Piece{{Data: t.recv[from].used}}, nil
	}
	if t.Kind == plan.AllReduce || t.Kind == plan.AllGather {
		if *shared == nil {
			*shared = &t.call.Received(0, t.inputs)[0]
		}
		return []sequential.Piece{**shared}, nil
	}
	return t.call.Received(rank, t.inputs), nil
}

func (t *Trial) compare(name string, rank int, b *buffer, pieces []sequential.Piece) error {
	want := append([]byte(nil), b.before...)
	begin := index(b.around, b.used)
	for _, p := range pieces {
		copy(want[begin+p.Offset:], p.Data)
	}
	if bytes.Equal(want, b.around) {
		return nil
	}
	wrong, first := 0, -1
	for i := range want {
		if want[i] != b.around[i] {
			if wrong++; first < 0 {
				first = i
			}
		}
	}
	return fmt.Errorf("rank %d, %s of %d bytes: %d bytes are wrong, the first at %d: %#x, want %#x",
		rank, name, len(b.used), wrong, first-begin, b.around[first], want[first])
}

// Result is a copy of everything that rank has received, nil if nothing.
func (t *Trial) Result(rank int) []byte {
	if t.recv[rank] == nil {
		return nil
	}
	return append([]byte(nil), t.recv[rank].used...)
}

// Restore makes all memory what it was before the call.
func (t *Trial) Restore() {
	for _, buffers := range [][]*buffer{t.send, t.recv} {
		for _, b := range buffers {
			if b != nil {
				copy(b.around, b.before)
			}
		}
	}
}
