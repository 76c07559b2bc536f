package collective_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
)

// A faulty program is a random one in which one rank does something else at one
// point. What is certain then, and tested here:
//
//   - every call of every rank returns, and Close does;
//   - a call that returns nil has left what it would have left without the fault:
//     nothing that depended on the faulty rank is passed off as right;
//   - all errors are the same first cause;
//   - whatever the outcome, send buffers and what surrounds receive buffers are as
//     before;
//   - if the fault ends the communicator or is about a call that all ranks make, no
//     rank gets to the end of the program.
//
// Every operation has a count of its own. With equal ones, a rank that leaves out
// one of two equal calls has made no mistake that anybody could see.
//
// A message that nobody receives, or is received instead of the one before, harms
// nobody else: what depends on it fails.

type faultKind int

const (
	skips faultKind = iota
	countsOtherwise
	typesOtherwise
	swaps
	cancels
	cancelsMeanwhile
	aborts
	abortsMeanwhile
	closes
	fallsSilent
	faultKinds
)

func (f faultKind) String() string {
	return [...]string{"skips", "counts otherwise", "types otherwise", "swaps", "cancels", "cancels meanwhile", "aborts", "aborts meanwhile", "closes", "falls silent"}[f]
}

func TestAFaultyRankCanNeitherHangNorDeceiveTheOthers(t *testing.T) {
	limit := 5 * time.Second
	if underRace {
		limit = 3 * time.Second
	}
	end := time.Now().Add(durationOf(t, "GOLLECTIVE_TEST_FAULTS", limit))
	seed := seedOf(t)
	rounds, ended, slowest, slowestSeed := 0, 0, time.Duration(0), uint64(0)
	for ; time.Now().Before(end); rounds++ {
		start := time.Now()
		allFailed, err := faultyProgram(t, seed+uint64(rounds))
		if err != nil {
			t.Fatalf("GOLLECTIVE_TEST_SEED=%d: %v", seed+uint64(rounds), err)
		}
		if allFailed {
			ended++
		}
		if took := time.Since(start); took > slowest {
			slowest, slowestSeed = took, seed+uint64(rounds)
		}
	}
	t.Logf("%d programs, %d of them ended by their fault, the slowest, %d, took %v", rounds, ended, slowestSeed, slowest)
}

// faulty is a program with a fault.
type faulty struct {
	seed  uint64
	fault faultKind
	rank  int // of the fault
	at    int // operation
	ops   []*operation
	fused []bool // with the operation before
}

func drawFaulty(seed uint64) (*faulty, collective.Config, int) {
	r := rand.New(rand.NewPCG(seed, 7))
	n := 2 + r.IntN(4)
	config := randomConfig(r)
	f := &faulty{seed: seed, fault: faultKind(r.IntN(int(faultKinds))), rank: r.IntN(n)}
	if f.fault == fallsSilent {
		config.Timeout = 30 * time.Millisecond
	}
	// An actor draws operations; its communicator only says how many ranks there
	// are.
	drawer := &actor{shared: r, size: n}
	for k := range 2 + r.IntN(10) {
		o := drawer.draw()
		if r.IntN(4) == 0 {
			o = &operation{seed: r.Uint64(), kind: plan.Send, typ: dtype.Int32, root: r.IntN(n)}
			o.from = (o.root + 1 + r.IntN(n-1)) % n
		}
		most := 20_000
		if underRace {
			most = 2000
		}
		o.count = 16*min(randomCount(r), most) + k + 1 // k+1: none like another
		if o.kind == plan.AlltoAllv {
			for p := range o.table {
				for q := range o.table[p] {
					o.table[p][q] = 32*r.IntN(10) + k + 1
				}
			}
			o.count = 400
		}
		if o.kind == plan.Barrier {
			o.kind = plan.AllGather // Barriers are all alike
			o.inPlace = false
		}
		f.ops = append(f.ops, o)
		f.fused = append(f.fused, k > 0 && r.IntN(4) == 0)
	}
	f.at = r.IntN(len(f.ops))
	return f, config, n
}

func (f *faulty) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rank %d %v at operation %d:", f.rank, f.fault, f.at)
	for k, o := range f.ops {
		separator := "\n  "
		if f.fused[k] {
			separator = " + "
		}
		fmt.Fprintf(&b, "%s%v(count %d, %v, %s, root %d, from %d)", separator, o.kind, o.count, o.typ, o.op, o.root, o.from)
	}
	return b.String()
}

// visible reports whether the fault must end the communicator.
func (f *faulty) visible() bool {
	switch f.fault {
	case cancels, aborts, closes:
		return true
	case cancelsMeanwhile, abortsMeanwhile:
		return false // the program may be over before
	case swaps:
		if f.at+1 == len(f.ops) || !f.collective(f.at) || !f.collective(f.at+1) {
			return false
		}
		// In a group, what is made of messages comes last in any case.
		return !f.fused[f.at+1] || f.ofMessages(f.at) == f.ofMessages(f.at+1)
	case fallsSilent:
		return true
	}
	return f.collective(f.at)
}

func (f *faulty) collective(k int) bool { return f.ops[k].kind != plan.Send }

func (f *faulty) ofMessages(k int) bool {
	return f.ops[k].kind >= plan.AlltoAll && f.ops[k].kind <= plan.Scatter
}

func faultyProgram(t *testing.T, seed uint64) (allFailed bool, err error) {
	t.Helper()
	f, config, n := drawFaulty(seed)
	comms, err := collective.InitAllConfig(n, config)
	if err != nil {
		return false, err
	}
	defer func() {
		if t.Failed() { // ranks hang
			t.Logf("GOLLECTIVE_TEST_SEED=%d: %d ranks, %+v, %v", seed, n, config, f)
		}
	}()
	wrong := make([]error, n) // against the rules
	errs := onRanks(t, comms, func(c *collective.Comm) error {
		r := newFaultyRank(f, c)
		err := r.run()
		if r.meanwhile != nil {
			r.meanwhile.Stop()
		}
		wrong[c.Rank()] = errors.Join(r.wrong, c.Close(), r.intact())
		return err
	})
	describe := func(rank int, err error) error {
		return fmt.Errorf("%d ranks, %+v, %v: rank %d: %w", n, config, f, rank, err)
	}
	var cause error
	allFailed = true
	for rank, err := range errs {
		if wrong[rank] != nil {
			return false, describe(rank, wrong[rank])
		}
		switch {
		case err == nil:
			if f.visible() {
				return false, describe(rank, errors.New("has got to the end of the program"))
			}
			allFailed = false
		case f.fault == closes && rank == f.rank && errors.Is(err, collective.ErrClosed):
		case cause == nil:
			cause = err
		case cause != err:
			return false, describe(rank, fmt.Errorf("%w, but another rank: %w", err, cause))
		}
	}
	return allFailed, nil
}

// faultyRank is one rank's part.
type faultyRank struct {
	*faulty
	c         *collective.Comm
	own       *rand.Rand
	ctx       context.Context
	cancel    context.CancelFunc
	meanwhile *time.Timer
	issued    []*pending
	wrong     error
}

func newFaultyRank(f *faulty, c *collective.Comm) *faultyRank {
	r := &faultyRank{faulty: f, c: c, own: rand.New(rand.NewPCG(f.seed, uint64(8+c.Rank())))}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// run returns the first error of the rank's calls.
func (r *faultyRank) run() error {
	defer r.cancel()
	mine := append([]*operation(nil), r.ops...)
	if r.c.Rank() == r.rank {
		mine = r.misbehave(mine)
	}
	var first error
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	for k := 0; k < len(mine) && first == nil; k++ {
		if r.own.IntN(10) == 0 {
			time.Sleep(time.Duration(r.own.IntN(1000)) * time.Microsecond)
		}
		end := k + 1
		for end < len(mine) && r.fused[end] {
			end++
		}
		if r.c.Rank() == r.rank && k <= r.at && r.at < end {
			r.act()
		}
		if end > k+1 {
			note(r.group(mine[k:end]))
			k = end - 1
			continue
		}
		if mine[k] == nil {
			continue
		}
		if p := r.prepareAt(mine[k], k); p != nil {
			note(r.call(p))
		}
	}
	for _, p := range r.issued {
		if p.handle != nil {
			r.judge(p, p.handle.Wait(context.Background()), note)
		}
	}
	if first == nil {
		note(collective.Barrier(r.ctx, r.c))
	}
	return first
}

// misbehave changes what the rank is going to call.
func (r *faultyRank) misbehave(mine []*operation) []*operation {
	switch r.fault {
	case skips:
		mine[r.at] = nil
	case countsOtherwise:
		other := *mine[r.at]
		if other.kind == plan.AlltoAllv {
			// The blocks stay where they are: the others' are as before.
			other.layout = other.table
			other.table = append([][]int(nil), other.table...)
			row := append([]int(nil), other.table[r.rank]...)
			row[(r.rank+1)%len(row)]++
			other.table[r.rank] = row
		}
		other.count++
		mine[r.at] = &other
	case typesOtherwise:
		other := *mine[r.at]
		other.typ = (other.typ + 1) % 8
		if other.op == "avg" {
			other.op = "max"
		}
		mine[r.at] = &other
	case swaps:
		if r.at+1 < len(mine) {
			mine[r.at], mine[r.at+1] = mine[r.at+1], mine[r.at]
		}
	}
	return mine
}

// act is a fault that is not a call.
func (r *faultyRank) act() {
	soon := time.Duration(r.own.IntN(1500)) * time.Microsecond
	switch r.fault {
	case cancels:
		r.cancel()
	case cancelsMeanwhile:
		r.meanwhile = time.AfterFunc(soon, r.cancel)
	case aborts:
		r.c.Abort()
	case abortsMeanwhile:
		r.meanwhile = time.AfterFunc(soon, r.c.Abort)
	case closes:
		_ = r.c.Close()
	case fallsSilent:
		time.Sleep(100 * time.Millisecond)
		for r.c.Err() == nil {
			time.Sleep(time.Millisecond)
		}
	}
}

// prepareAt is nil for a message that this rank has no part in.
func (r *faultyRank) prepareAt(o *operation, k int) *pending {
	me := r.c.Rank()
	if o.kind == plan.Send && me != o.root && me != o.from {
		return nil
	}
	p, err := o.prepare(r.c.Size(), me, r.own, heap)
	if err != nil {
		panic(err) // there is no memory
	}
	p.name = fmt.Sprintf("operation %d: %v(count %d, %v, root %d, from %d)", k, o.kind, o.count, o.typ, o.root, o.from)
	r.issued = append(r.issued, p)
	return p
}

func (r *faultyRank) call(p *pending) (err error) {
	if r.own.IntN(2) == 0 {
		err = r.c.Do(r.ctx, p.call)
		r.judge(p, err, func(error) {})
		return err
	}
	p.handle, err = r.c.Start(r.ctx, p.call)
	return err
}

func (r *faultyRank) group(ops []*operation) error {
	g := collective.NewGroup()
	first := len(r.issued)
	for k, o := range ops {
		if o == nil {
			continue
		}
		if p := r.prepareAt(o, k); p != nil {
			if err := g.Add(r.c, p.call); err != nil {
				return err
			}
		}
	}
	h, err := g.Start(r.ctx)
	if err != nil {
		return err
	}
	for _, p := range r.issued[first:] {
		p.handle = h
	}
	return nil
}

// judge holds a call that has ended against the rules.
func (r *faultyRank) judge(p *pending, err error, note func(error)) {
	if err != nil {
		note(err)
		return
	}
	// What the faulty rank has called differently has no meaning to compare with.
	if r.c.Rank() == r.rank && (r.fault == countsOtherwise || r.fault == typesOtherwise || r.fault == skips || r.fault == swaps) {
		return
	}
	if err := p.check(); err != nil && r.wrong == nil {
		r.wrong = fmt.Errorf("wrong, and no error: %w", err)
	}
}

// intact checks what no call may touch, whatever its outcome.
func (r *faultyRank) intact() error {
	for _, p := range r.issued {
		if p.kept != nil && !bytes.Equal(p.kept, p.call.Send) {
			return fmt.Errorf("%s: the send buffer has changed", p.name)
		}
		end := margin + len(p.call.Recv)
		if p.inPlace {
			end = len(p.memory) // the send buffer may be longer
		}
		for i := range p.memory {
			if (i < margin || i >= end) && p.memory[i] != byte(0xa5^i) {
				return fmt.Errorf("%s: byte %d behind the receive buffer of %d has changed", p.name, i-margin, len(p.call.Recv))
			}
		}
	}
	return nil
}
