package tune

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"time"

	"github.com/gollective/gollective/bench/perf"
	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
)

// member is one rank in its goroutine.
type member struct {
	of    *Case
	rank  int
	free  *collective.Comm // also for what ranks have to agree on
	tries []try
	end   time.Time // that rank 0 looks at
	seed  maphash.Seed

	send, recv []byte
}

// try is a choice at one point.
type try struct {
	Choice
	comm    *collective.Comm
	out     bool      // of the race
	first   float64   // us per call, of the first calls
	batches []float64 // the same, of each batch
}

// timing is what is known of it.
func (t *try) timing() Timing {
	if len(t.batches) == 0 {
		return newTiming(t.Choice, []float64{t.first})
	}
	return newTiming(t.Choice, t.batches)
}

func newMember(t *team, local int, of *Case) *member {
	m := &member{of: of, free: t.free[local], seed: maphash.MakeSeed(), end: time.Now().Add(of.Budget)}
	m.rank = m.free.Rank()
	for _, f := range t.forced {
		m.tries = append(m.tries, try{Choice: f.Choice, comm: f.comms[local]})
	}
	return m
}

// Memory that small calls walk through, so that they don't find one cache line
// where others don't.
const walkBytes = 16 << 10

func (m *member) play(say func(Point) error) error {
	for i, place := range m.of.Places {
		share, err := m.share(len(m.of.Places) - i)
		if err != nil || share <= 0 {
			return err
		}
		p, err := m.measure(place, share)
		if err != nil {
			return fmt.Errorf("%v, %s, %d bytes: %w", place.Placement, place.Collective, place.Bytes, err)
		}
		if m.rank == 0 && len(p.Times) > 0 {
			if err := say(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// share is the time for the next of so many places as rank 0 sees it, 0 if all is
// used up.
func (m *member) share(places int) (time.Duration, error) {
	left := []int64{int64(time.Until(m.end)) / int64(places)}
	if err := collective.Broadcast(context.Background(), m.free, left, left, 0); err != nil {
		return 0, err
	}
	return time.Duration(left[0]), nil
}

// slowest is the greatest of all ranks' numbers.
func (m *member) slowest(x float64) (float64, error) {
	all := []float64{x}
	err := collective.AllReduce(context.Background(), m.free, all, all, collective.Max)
	return all[0], err
}

// callsOf are the calls of a rank at one place, which walk through its memory.
type callsOf struct {
	collective.Call
	sendBytes, recvBytes, stride, slots int
	send, recv                          []byte
	result                              bool // this rank gets one
}

func (c *callsOf) at(i int) collective.Call {
	call := c.Call
	offset := i % c.slots * c.stride
	call.Send, call.Recv = c.send[offset:offset+c.sendBytes], c.recv[offset:offset+c.recvBytes]
	return call
}

func (m *member) calls(place Place) (*callsOf, error) {
	shape, err := perf.ShapeOf(place.Collective, place.Bytes, 4, place.Ranks)
	if err != nil {
		return nil, err
	}
	c := &callsOf{sendBytes: shape.SendBytes, recvBytes: shape.RecvBytes, result: true}
	c.Call = collective.Call{Kind: shape.Kind, Type: dtype.Float32, Count: shape.Count}
	switch shape.Kind {
	case plan.Reduce:
		c.result = m.rank == 0
		fallthrough
	case plan.AllReduce, plan.ReduceScatter:
		c.Op = collective.Sum
	}
	c.stride = (max(c.sendBytes, c.recvBytes) + 127) &^ 127
	c.slots = max(1, walkBytes/max(c.stride, 1))
	if need := max(c.stride, 128) * c.slots; len(m.send) < need {
		m.send, m.recv = make([]byte, need), make([]byte, need)
		m.fill()
	}
	c.send, c.recv = m.send, m.recv
	return c, nil
}

// fill puts small whole numbers into the input: their sums are exact in any order.
func (m *member) fill() {
	for i := 0; i+4 <= len(m.send); i += 4 {
		bits := math.Float32bits(float32((i/4 + 7*m.rank) % 16))
		m.send[i], m.send[i+1], m.send[i+2], m.send[i+3] = byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24)
	}
}

// measure is what the package's description says of a point. All ranks come to the
// same decisions: they look at the slowest rank's times.
func (m *member) measure(place Place, share time.Duration) (Point, error) {
	p := Point{Place: place}
	c, err := m.calls(place)
	if err != nil || c.Count == 0 {
		return p, err // fewer bytes than ranks
	}
	if p.Model, err = choiceOf(m.free, c); err != nil {
		return p, err
	}
	tries := make([]try, 0, len(m.tries))
	for _, t := range m.tries {
		// A choice that can't run here is none; what runs instead has a try of its own.
		if got, err := choiceOf(t.comm, c); err == nil && got.Algorithm == t.Algorithm && got.Protocol == t.Protocol {
			tries = append(tries, t)
		}
	}
	if err := m.compare(tries, c); err != nil {
		return p, err
	}
	if err := m.rounds(tries, c, share); err != nil {
		return p, err
	}
	for _, t := range tries {
		p.Times = append(p.Times, t.timing())
	}
	return p, nil
}

// choiceOf is what a communicator chooses for the calls, with its channels.
func choiceOf(comm *collective.Comm, c *callsOf) (Choice, error) {
	p, err := comm.Plan(c.at(0))
	if err != nil {
		return Choice{}, err
	}
	return Choice{p.Choice.Algorithm.String(), p.Choice.Protocol.String(), p.Choice.Channels}, nil
}

// compare has every choice make one call, and the results be equal.
func (m *member) compare(tries []try, c *callsOf) error {
	var first uint64
	for i := range tries {
		call := c.at(0)
		for j := range call.Recv {
			call.Recv[j] = 0xff
		}
		if err := tries[i].comm.Do(context.Background(), call); err != nil {
			return fmt.Errorf("%v: %w", tries[i].Choice, err)
		}
		sum := maphash.Bytes(m.seed, call.Recv)
		if i == 0 {
			first = sum
		}
		wrong := 0.0
		if c.result && sum != first {
			wrong = float64(1 + m.rank)
		}
		wrong, err := m.slowest(wrong)
		if err != nil {
			return err
		}
		if wrong > 0 {
			return fmt.Errorf("%v and %v give rank %d different results", tries[0].Choice, tries[i].Choice, int(wrong)-1)
		}
	}
	return nil
}

const (
	firstCalls = 3
	// coldCalls touch all slots of the FIFOs before; larger calls do so in one.
	coldCalls = 9
	// hopeless is how many times slower than the best a choice is after the first
	// calls that is not measured further; beaten is the same after half of the rounds.
	hopeless = 4.0
	beaten   = 1.5
	// A batch takes about so long, or one call: many short rounds, of which all choices
	// have seen the same disturbances, tell more than few long ones.
	batchMicros = 1000.0
)

// rounds makes the batches of a point.
func (m *member) rounds(tries []try, c *callsOf, share time.Duration) error {
	if len(tries) == 0 {
		return nil
	}
	for i := range tries {
		if c.stride <= 1<<20 {
			if _, err := m.batch(&tries[i], c, coldCalls); err != nil {
				return err
			}
		}
		first, err := m.batch(&tries[i], c, firstCalls)
		if err != nil {
			return err
		}
		tries[i].first = first
	}
	for i := range tries {
		again, err := m.batch(&tries[i], c, firstCalls)
		if err != nil {
			return err
		}
		tries[i].first = min(tries[i].first, again)
	}
	dropSlow(tries, hopeless)
	each := 0.0 // us of a round
	for i := range tries {
		if t := &tries[i]; !t.out {
			each += max(t.first, batchMicros)
		}
	}
	rounds := int(min(max(float64(share.Microseconds())/each, float64(m.of.Rounds)), float64(max(m.of.MostRounds, m.of.Rounds))))
	for round := range rounds {
		if round == (m.of.Rounds+1)/2 {
			dropSlow(tries, beaten)
		}
		for i := range tries {
			t := &tries[i]
			if round%2 == 1 {
				t = &tries[len(tries)-1-i]
			}
			if t.out {
				continue
			}
			calls := int(max(batchMicros/t.first, 1))
			micros, err := m.batch(t, c, calls)
			if err != nil {
				return err
			}
			t.batches = append(t.batches, micros)
		}
	}
	return nil
}

// dropSlow leaves out what takes so many times as long as the best. It looks at the
// best batches: those of few may all have been disturbed, but not sped up.
func dropSlow(tries []try, times float64) {
	least := math.Inf(1)
	for i := range tries {
		least = min(least, tries[i].timing().Least)
	}
	for i := range tries {
		t := &tries[i]
		t.out = t.out || t.timing().Least > times*least
	}
}

// batch makes calls back to back, and returns the slowest rank's time of one in us.
func (m *member) batch(t *try, c *callsOf, calls int) (float64, error) {
	ctx := context.Background()
	for range 2 {
		// The second one begins when all have left the first, and its ranks
		// leave it about together.
		if err := t.comm.Do(ctx, collective.Call{Kind: plan.Barrier}); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	for i := range calls {
		if err := t.comm.Do(ctx, c.at(i)); err != nil {
			return 0, fmt.Errorf("%v: %w", t.Choice, err)
		}
	}
	return m.slowest(max(time.Since(start).Seconds()*1e6/float64(calls), 1e-4))
}
