package proto

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
)

// Ranks in goroutines of their own execute random operations on desks. What a rank shows
// or lends in an operation is a function of both; what it has lent it scribbles over as
// soon as it has it back, so that the race detector, or the content, tells of whoever
// looks too late.

const deskSlot = 1 << 10

// directOp is one operation.
type directOp struct {
	form directForm
	root int // of showToOne, lendOne
	size int // bytes of what a rank shows, or of a share
}

type directForm int

const (
	showToAll directForm = iota
	showToOne
	lendAndStore // every rank stores its share in all outputs
	lendAndPull  // every rank fetches what the others combine, in rounds
	lendOne      // the root's memory is fetched
	directForms
)

// content is byte i of what a rank has in an operation.
func content(op, rank, i int) byte { return byte(op*31 ^ rank*101 ^ i*7 ^ i>>8) }

func filled(op, rank, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = content(op, rank, i)
	}
	return b
}

func expect(what string, got []byte, op, rank, from int) error {
	for i, b := range got {
		if want := content(op, rank, from+i); b != want {
			return fmt.Errorf("%s: byte %d of rank %d is %d, want %d", what, from+i, rank, b, want)
		}
	}
	return nil
}

func drawDirect(r *rand.Rand, ranks, length int) []directOp {
	ops := make([]directOp, length)
	for i := range ops {
		op := &ops[i]
		op.form, op.root = directForm(r.IntN(int(directForms))), r.IntN(ranks)
		op.size = []int{0, 1, 8, 47, 48, 49, 64, 129, deskSlot - 1, deskSlot}[r.IntN(10)]
	}
	return ops
}

// directRank is one rank at work.
type directRank struct {
	*Direct
	rank, ranks int
	random      *rand.Rand
	beds        []spin.Bed // of all ranks, nil on desks of one process
}

func (d *directRank) dawdle() {
	switch d.random.IntN(12) {
	case 0:
		time.Sleep(time.Duration(d.random.IntN(100)) * time.Microsecond)
	case 1, 2:
		runtime.Gosched()
	}
}

func (d *directRank) perform(i int, op directOp, w *spin.Waiter) error {
	d.Begin(Operation{Waiter: w, Header: uint64(i) * 0x9e3779b97f4a7c15})
	switch op.form {
	case showToAll, showToOne:
		return d.show(i, op)
	case lendOne:
		return d.one(i, op)
	}
	return d.all(i, op)
}

func (d *directRank) show(i int, op directOp) error {
	payload := filled(i, d.rank, op.size)
	if err := d.Show(payload); err != nil {
		return err
	}
	defer d.Ring()
	clear(payload) // it is the caller's at once
	d.dawdle()
	if op.form == showToOne && d.rank != op.root {
		return nil
	}
	if err := d.SeeAll(); err != nil {
		return err
	}
	d.dawdle()
	var errs []error
	for rank := range d.ranks {
		errs = append(errs, expect("payload", d.Payload(rank, op.size), i, rank, 0))
	}
	d.Claim(op.size)
	return errors.Join(errs...)
}

// words are what a rank lends beside its buffers.
func (d *directRank) words(i int) (w [transport.PostWords]uint64) {
	for k := range w {
		w[k] = uint64(i*1000 + d.rank*10 + k)
	}
	return w
}

func (d *directRank) met(i int) error {
	if err := d.SeeAll(); err != nil {
		return err
	}
	for rank := range d.ranks {
		peer := directRank{rank: rank}
		if got, want := d.Words(rank), peer.words(i); got != want {
			return fmt.Errorf("words of rank %d are %v, want %v", rank, got, want)
		}
	}
	d.dawdle()
	d.Work()
	return nil
}

func (d *directRank) one(i int, op directOp) error {
	send := filled(i, d.rank, op.size)
	if err := d.Lend(transport.Loan{Send: send}, d.words(i)); err != nil {
		return err
	}
	if err := d.met(i); err != nil {
		return err
	}
	if d.rank == op.root {
		d.Done()
		err := d.AwaitDone()
		d.scribble(send)
		d.Return()
		return err
	}
	err := expect("the root's", d.Lent(op.root).Send, i, op.root, 0)
	d.Done()
	d.scribble(send)
	return errors.Join(err, d.Valid(op.root))
}

// all is an AllGather whose blocks a rank stores in all outputs, or combines in rounds for
// the others to fetch. A share is what an input begins with; the phase of scaling is
// used, too.
func (d *directRank) all(i int, op directOp) error {
	const rounds = 3
	send, recv := make([]byte, op.size), make([]byte, d.ranks*op.size)
	if err := d.Lend(transport.Loan{Send: send, Recv: recv}, d.words(i)); err != nil {
		return err
	}
	copy(send, filled(i, d.rank, op.size)) // as scaling does
	if err := d.Scaled(); err != nil {
		return err
	}
	if err := d.met(i); err != nil {
		return err
	}
	block := func(b []byte, rank int) []byte { return b[rank*op.size : (rank+1)*op.size] }
	round := func(b []byte, k int) []byte { return b[k*op.size/rounds : (k+1)*op.size/rounds] }
	switch op.form {
	case lendAndStore:
		for rank := range d.ranks {
			copy(block(d.Lent(rank).Recv, d.rank), d.Lent(d.rank).Send)
		}
	default:
		for k := range rounds + 1 {
			if k < rounds {
				copy(round(block(recv, d.rank), k), round(send, k))
				d.Combined(k)
				d.dawdle()
			}
			for rank := range d.ranks {
				if rank == d.rank || k == 0 {
					continue
				}
				if err := d.AwaitCombined(rank, k-1); err != nil {
					return err
				}
				copy(round(block(recv, rank), k-1), round(block(d.Lent(rank).Recv, rank), k-1))
			}
		}
	}
	d.Done()
	if err := d.AwaitDone(); err != nil {
		return err
	}
	var errs []error
	for rank := range d.ranks {
		errs = append(errs, expect("output", block(recv, rank), i, rank, 0))
	}
	d.scribble(send)
	d.scribble(recv)
	d.Return()
	return errors.Join(errs...)
}

func (d *directRank) scribble(b []byte) {
	for i := range b {
		b[i] ^= 0xff
	}
}

// directRanks makes ranks whose next post and lending operation have the numbers behind
// the given ones; shared says that desks are as between processes.
func directRanks(t *testing.T, ranks int, posted, lent uint64, shared bool, r *rand.Rand) []*directRank {
	t.Helper()
	memory := make([][]byte, ranks)
	beds := make([]spin.Bed, ranks)
	desks := make([]*transport.Desk, ranks)
	for rank := range desks {
		var err error
		if desks[rank], err = transport.NewDesk(deskSlot); err != nil {
			t.Fatal(err)
		}
		memory[rank] = alignedMemory(transport.DeskBytes(deskSlot))
		transport.MarkDesk(memory[rank], deskSlot)
	}
	all := make([]*directRank, ranks)
	for rank := range all {
		mine := desks
		if shared { // every rank has views of its own, which lend nothing
			mine = make([]*transport.Desk, ranks)
			for peer := range mine {
				var err error
				mine[peer], err = transport.ShareDesk(memory[peer], deskSlot, beds, peer%2 == rank%2)
				require.NoError(t, err)
			}
		}
		d := NewDirect(rank, mine)
		d.post, d.lend = posted, lent
		for peer := range d.seen {
			d.seen[peer] = posted
		}
		d.own.Move(d.phase(done))
		all[rank] = &directRank{Direct: d, rank: rank, ranks: ranks, random: rand.New(rand.NewPCG(r.Uint64(), 0))}
		if shared {
			all[rank].beds = beds
		}
	}
	return all
}

// alignedMemory is what processes map, but on the heap: the race detector looks.
func alignedMemory(size int) []byte {
	c, err := transport.NewConn((size+transport.Line-1)/transport.Line*transport.Line, 0)
	if err != nil {
		panic(err)
	}
	return transport.NewSendEnd(c, 0).Slot(1)[:size]
}

func TestDesksShowAndLendWhatAModelSays(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, begin := range []struct{ posted, lent uint64 }{
		{0, 0},
		{1<<32 - 20, 7},         // more operations than 32 bits count
		{5, 1<<39 - 20},         // phases go round
		{1<<39 - 20, 1<<38 - 9}, // half way
	} {
		for _, shared := range []bool{false, true} {
			for ranks := 1; ranks <= 5; ranks++ {
				ops := drawDirect(r, ranks, 120)
				if shared { // slices of another process are nobody's
					for i := range ops {
						ops[i].form %= showToOne + 1
					}
				}
				name := fmt.Sprintf("%d ranks from %+v on, shared %v", ranks, begin, shared)
				t.Run(name, func(t *testing.T) {
					all := directRanks(t, ranks, begin.posted, begin.lent, shared, r)
					policy := []spin.Policy{spin.Adaptive, spin.Yield, spin.Block, spin.Spin}[r.IntN(4)]
					if policy == spin.Spin && ranks > runtime.GOMAXPROCS(0) {
						policy = spin.Adaptive // it would take the scheduler's time slices
					}
					for rank, err := range performAll(t, all, ops, policy) {
						require.NoError(t, err, "rank %d", rank)
					}
				})
			}
		}
	}
}

// performAll executes ops on all ranks at once.
func performAll(t *testing.T, all []*directRank, ops []directOp, policy spin.Policy) []error {
	t.Helper()
	errs := make([]error, len(all))
	var ranks sync.WaitGroup
	for rank, d := range all {
		ranks.Go(func() {
			options := spin.Options{Policy: policy, Waiters: len(all)}
			if d.beds != nil {
				options.Parker = spin.NewBedParker(d.beds, uint32(rank+1))
			}
			w := spin.New(options)
			w.Bind(t.Context(), onlyContext{}, 30*time.Second)
			for i, op := range ops {
				d.dawdle()
				if err := d.perform(i, op, w); err != nil {
					errs[rank] = fmt.Errorf("operation %d %+v: %w", i, op, err)
					return
				}
			}
		})
	}
	ranks.Wait()
	return errs
}

// A post of another operation is an error that names its rank, never data.
func TestPostsOfAnotherOperationAreRefused(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	all := directRanks(t, 2, 0, 0, false, r)
	for rank, d := range all {
		w := spin.NewWaiter(spin.Adaptive, 2)
		w.Bind(t.Context(), onlyContext{}, 0)
		d.Begin(Operation{Waiter: w, Header: uint64(40 + rank)})
		require.NoError(t, d.Show(filled(0, rank, 4)))
		d.Ring()
	}
	for rank, d := range all {
		var header *HeaderError
		require.ErrorAs(t, d.SeeAll(), &header)
		require.Equal(t, HeaderError{Peer: 1 - rank, Want: uint64(40 + rank), Got: uint64(41 - rank)}, *header)
	}
}

// Phases are in order around the end of the numbers, and whoever has withdrawn has
// reached none.
func TestPhasesAreInOrder(t *testing.T) {
	var phases []uint64
	d := &Direct{}
	for _, lend := range []uint64{0, 1, 1 << 38, 1<<38 + 1, 1<<39 - 1, 1 << 39, 1<<39 + 1} {
		d.lend = lend
		for _, p := range []uint64{scaled, working, firstRound, firstRound + 1<<23, done} {
			phases = append(phases, d.phase(p))
		}
	}
	const each = 5
	for i, phase := range phases {
		require.Equal(t, i%each >= 1 && i%each < 4, atWork(phase), "%x", phase)
		require.Zero(t, phase&withdrawn)
		require.False(t, reached(phase|withdrawn, phase))
		require.False(t, atWork(phase|withdrawn))
	}
	for i := 1; i < len(phases); i++ {
		if far := (phases[i]-phases[i-1])>>phaseShift&(1<<39-1) > 1; !far {
			require.True(t, reached(phases[i], phases[i-1]), "%x after %x", phases[i], phases[i-1])
			require.False(t, reached(phases[i-1], phases[i]), "%x before %x", phases[i-1], phases[i])
		}
	}
}

// What a rank writes at every operation shares no cache line with another rank's.
func TestDirectFillsWholeLines(t *testing.T) {
	require.Zero(t, unsafe.Sizeof(Direct{})%transport.Line)
}
