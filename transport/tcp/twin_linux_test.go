package tcp

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/transport"
)

// duplex is the two links between ranks 0 and 1.
type duplex struct {
	p    pair
	send [2]*transport.SendEnd
	recv [2]*transport.RecvEnd
}

func openDuplex(t *testing.T, p pair, link transport.Link) *duplex {
	d := &duplex{p: p}
	for rank := range 2 {
		link.From, link.To = rank, 1-rank
		out, err := p.Connect(link, transport.Producer)
		require.NoError(t, err)
		in, err := p.Connect(link, transport.Consumer)
		require.NoError(t, err)
		d.send[rank], d.recv[1-rank] = transport.NewSendEnd(out, 1-rank), transport.NewRecvEnd(in, rank)
		d.send[rank].Open()
		d.recv[1-rank].Open()
	}
	return d
}

// pass sends what fill makes, of n bytes in a slot, from one rank to the other and
// compares.
func (d *duplex) pass(t *testing.T, from int, number uint64, n int) {
	t.Helper()
	s, r := d.send[from], d.recv[1-from]
	eventually(t, s.Credit(1))
	slot := s.Slot(1)[:n]
	for i := range slot {
		slot[i] = byte(uint64(i) + number)
	}
	s.Post(1, number, n)
	eventually(t, s.Flushed())
	eventually(t, r.Filled(1))
	require.Equal(t, number, r.Header())
	user, size := r.Landed()
	require.False(t, user)
	require.Equal(t, n, size)
	for i, b := range r.Slot(1)[:n] {
		if b != byte(uint64(i)+number) {
			require.Fail(t, "other bytes than were sent", "rank %d, message %d of %d bytes, at %d", from, number, n, i)
		}
	}
	r.Release(1)
}

// turned is whether the links from each rank go over the other's connection: what
// their senders say, and their receivers.
func (d *duplex) turned(link transport.Link) (out, in [2]bool) {
	for rank := range 2 {
		link.From, link.To = rank, 1-rank
		for end, of := range map[*bool]int{&out[rank]: rank, &in[rank]: 1 - rank} {
			t := d.p[of]
			t.mu.Lock()
			s, x, r := t.stations[stationKey{of, link.Channel}], t.senders[link], t.receivers[link]
			t.mu.Unlock()
			s.mu.Lock()
			if of == rank {
				*end = x.turned
			} else {
				*end = r.turned
			}
			s.mu.Unlock()
		}
	}
	return out, in
}

func TestTheWaysBetweenTwoRanksShareAConnection(t *testing.T) {
	plain := transport.Link{Channel: 2, Use: transport.Collective, Lane: 1, Slot: 1 << 14}
	message := plain
	message.Use = transport.PointToPoint
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for name, tc := range map[string]struct {
		link   transport.Link
		change func(*PortConfig)
		share  bool
	}{
		"collectives":    {plain, nil, true},
		"faulty sockets": {plain, func(c *PortConfig) { c.Faults = &Faults{Seed: seed, Short: 0.3, Interrupt: 0.2, Again: 0.2} }, true},
		"messages":       {message, nil, false},
		"TLS":            {plain, encrypted(jobTLS(t, "of the job")), false},
		"helpers":        {plain, func(c *PortConfig) { c.Threads, c.SocketsPerThread = 1, 2 }, false},
	} {
		for driver, thread := range map[string]bool{"thread": true, "inline": false} {
			t.Run(name+"/"+driver, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 1))
				d := openDuplex(t, openPair(t, thread, tc.change), tc.link)
				for number := range uint64(60) {
					sizes := []int{0, 1, smallBytes, smallBytes + 1, random.IntN(tc.link.Slot), tc.link.Slot}
					d.pass(t, random.IntN(2), number, sizes[random.IntN(len(sizes))])
				}
				for rank := range 2 { // both have sent, whatever was drawn
					d.pass(t, rank, 100, 1)
					d.pass(t, rank, 101, tc.link.Slot)
				}
				out, in := d.turned(tc.link)
				require.Equal(t, [2]bool{false, tc.share}, out)
				require.Equal(t, out, in)
			})
		}
	}
}

// A rank that leaves ends its own direction, behind what it has sent.
func TestTheWayBackOutlivesTheEndOfTheOther(t *testing.T) {
	link := transport.Link{Use: transport.Collective, Lane: 1, Slot: 1 << 14}
	for leaver := range 2 {
		for driver, thread := range map[string]bool{"thread": true, "inline": false} {
			t.Run(driver, func(t *testing.T) {
				d := openDuplex(t, openPair(t, thread, nil), link)
				for number := range uint64(3) {
					d.pass(t, 0, number, 100)
					d.pass(t, 1, number, 100)
				}
				out, _ := d.turned(link)
				require.Equal(t, [2]bool{false, true}, out)
				s := d.send[leaver]
				s.Slot(1)[0] = 77
				s.Post(1, 5, 1)
				eventually(t, s.Flushed())
				s.Close()
				d.p[leaver].Leave(leaver, nil)
				d.pass(t, 1-leaver, 6, 3000)
				r := d.recv[1-leaver]
				eventually(t, r.Filled(1))
				require.EqualValues(t, 77, r.Slot(1)[0])
				r.Release(1)
				require.Eventually(t, func() bool {
					return !driven(r.Filled(1))() && d.p[1-leaver].Broken(1-leaver, leaver, false) != nil
				}, waitAtMost, lookEvery)
				require.ErrorIs(t, d.p[1-leaver].Broken(1-leaver, leaver, false), io.EOF)
			})
		}
	}
}

// Only a link that has a twin may move over, only once, and with nothing behind its
// last frame.
func TestLastFramesOutOfPlaceEndTheLink(t *testing.T) {
	last := frame{length: 8, slots: 1, last: true}
	next := frame{length: 8, slots: 1, step: 1}
	again := next
	again.last = true
	for name, tc := range map[string]struct {
		twin   bool
		from   int
		use    transport.Use
		over   []frame // the link's own connection
		behind []frame // the twin's
		why    string
	}{
		"no twin":           {false, 3, transport.Collective, []frame{last}, nil, "last frame"},
		"the lower rank":    {true, 1, transport.Collective, []frame{last}, nil, "last frame"},
		"a message":         {true, 3, transport.PointToPoint, []frame{last}, nil, "last frame"},
		"something behind":  {true, 3, transport.Collective, []frame{last, next}, nil, "behind its last frame"},
		"a second":          {true, 3, transport.Collective, []frame{last}, []frame{again}, "last frame"},
		"all is well, then": {true, 3, transport.Collective, []frame{last}, []frame{next}, io.EOF.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			b := newInbox(512, &text{rest: written(tc.over...)})
			b.link.From, b.link.To, b.link.Use = tc.from, 2, tc.use
			if tc.twin {
				pairUp(&sender{bundle: &bundle{main: &text{rest: written(tc.behind...)}}}, b.receiver)
			}
			for range 10 {
				b.end.Filled(1).Ready()
				b.progress(true)
				if b.end.Filled(1).Ready() {
					b.end.Release(1)
				}
			}
			require.ErrorContains(t, b.failure, tc.why)
			b.unharmed(t, 512)
		})
	}
}

// A twin whose connection comes later, or never.
func TestALinkWaitsForItsTwinsConnection(t *testing.T) {
	last := frame{length: 8, slots: 1, last: true}
	b := newInbox(512, &text{rest: written(last)})
	b.link.To = 2
	x := &sender{}
	pairUp(x, b.receiver)
	b.end.Filled(1).Ready()
	require.True(t, b.progress(true))
	require.True(t, b.end.Filled(1).Ready())
	require.True(t, b.turned)
	require.False(t, b.wants(true))
	require.NoError(t, b.failure)
	next := frame{length: 8, slots: 1, step: 1, header: binary.LittleEndian.Uint64([]byte("12345678"))}
	x.bundle = &bundle{main: &text{rest: written(next)}}
	b.end.Release(1)
	b.end.Filled(1).Ready()
	require.True(t, b.progress(true))
	require.True(t, b.end.Filled(1).Ready())
	require.Equal(t, next.header, b.end.Header())

	b = newInbox(512, &text{rest: written(last)})
	b.link.To = 2
	pairUp(&sender{failure: io.ErrNoProgress}, b.receiver)
	b.end.Filled(1).Ready()
	b.progress(true)
	require.ErrorIs(t, b.failure, io.ErrNoProgress)
}
