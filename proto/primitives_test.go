package proto

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
)

// GOLLECTIVE_TEST_PROTO_SEED repeats a run, GOLLECTIVE_TEST_PROTO_ROUNDS makes
// it longer (default 1).
func seedAndRounds(t *testing.T) (uint64, int) {
	t.Helper()
	seed, rounds := rand.Uint64(), 1
	if text := os.Getenv("GOLLECTIVE_TEST_PROTO_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	if text := os.Getenv("GOLLECTIVE_TEST_PROTO_ROUNDS"); text != "" {
		var err error
		rounds, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	t.Logf("GOLLECTIVE_TEST_PROTO_SEED=%d", seed)
	return seed, rounds
}

// Every primitive of every protocol, between 0 to 3 ranks on either side, leaves
// what the oracle says, in the output and on the wire, and touches nothing else.
func TestPrimitivesAgreeWithTheOracle(t *testing.T) {
	seed, rounds := seedAndRounds(t)
	for f, flavour := range flavours {
		t.Run(flavour.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, uint64(f)))
			tried := make(map[verb]bool)
			for range rounds {
				for in := range 4 {
					for out := range 4 {
						if in+out == 0 {
							continue
						}
						for _, payload := range []int{8, 40, 1000, 9001} {
							r := rig{
								in: in, out: out, own: random.IntN(in + 1), payload: payload, flavour: flavour,
								first:  []uint64{0, 5, 1<<31 - 20, 1<<32 - 20}[random.IntN(4)],
								policy: []spin.Policy{spin.Adaptive, spin.Yield, spin.Block}[random.IntN(3)],
							}
							program := r.program(random, 10)
							require.NoError(t, r.run(t, program), "%v", r)
							for _, op := range program {
								for _, c := range op.steps {
									tried[c.verb] = true
								}
							}
						}
					}
				}
			}
			require.Len(t, tried, len(verbs), "every primitive must have had its turn")
		})
	}
}

// The rig itself must notice a wrong byte.
func TestTheOracleNoticesAWrongChunk(t *testing.T) {
	r := rig{in: 1, out: 1, payload: 64, flavour: flavours[2]}
	op := operation{header: 1, math: arithmetics[1], chunking: chunking{1, 1}}
	op.steps = []chunk{{
		verb: recvReduceCopySend, input: []float64{1, 2, 3}, output: []float64{0, 0, 0},
		received: [][]float64{{1, 1, 1}},
	}}
	require.NoError(t, r.run(t, []operation{op}))
	op.math.combine = func(a, b float64) float64 { return a }
	require.ErrorContains(t, r.run(t, []operation{op}), "byte 0 of 12 is 0x2, want 0x1")
}

// Both ends count the same steps whatever a chunk's length.
func TestAChunkTakesAllItsStepsWhateverItsLength(t *testing.T) {
	for _, flavour := range flavours {
		for _, c := range flavour.chunks {
			for n := 0; n <= 64; n += 16 {
				conn := newConn(t, flavour.slotBytes(64), 0)
				s, r := transport.NewSendEnd(conn, 1), transport.NewRecvEnd(conn, 0)
				w := boundWaiter(t.Context())
				pipe := flavour.open(Ends{To: []*transport.SendEnd{s}}, 4, 64, c)
				pipe.Begin(Operation{Waiter: w})
				require.NoError(t, pipe.Send(make([]byte, n)))
				require.EqualValues(t, c.chunkSteps, s.Step(), "%s, %d bytes", flavour.name, n)
				pipe = flavour.open(Ends{From: []*transport.RecvEnd{r}}, 4, 64, c)
				pipe.Begin(Operation{Waiter: w})
				require.NoError(t, pipe.Recv(make([]byte, n)))
				require.EqualValues(t, c.chunkSteps, r.Step())
			}
		}
	}
}

func boundWaiter(ctx context.Context) *spin.Waiter {
	w := spin.NewWaiter(spin.Adaptive, 1)
	w.Bind(ctx, onlyContext{}, 0)
	return w
}

// A slot that another operation filled is an error that names the peer, before a
// byte of the output is written, whichever of several peers it is and whether or
// not the chunk is empty.
func TestASlotOfAnotherOperationIsNoticed(t *testing.T) {
	for _, flavour := range flavours {
		for _, c := range flavour.chunks {
			for _, bytes := range []int{0, 16} {
				for culprit := range 3 {
					var from []*transport.RecvEnd
					w := boundWaiter(t.Context())
					for i := range 3 {
						conn := newConn(t, flavour.slotBytes(64), 1<<32-2)
						from = append(from, transport.NewRecvEnd(conn, 10+i))
						pipe := flavour.open(Ends{To: []*transport.SendEnd{transport.NewSendEnd(conn, 0)}}, 1, 64, c)
						header := uint64(0xabcdef0123456789)
						if i == culprit {
							header ^= 1 << 63
						}
						pipe.Begin(Operation{Waiter: w, Header: header})
						require.NoError(t, pipe.Send(make([]byte, bytes)))
					}
					kernel, err := arithmetics[0].kernel()
					require.NoError(t, err)
					pipe := flavour.open(Ends{From: from}, 1, 64, c)
					pipe.Begin(Operation{Waiter: w, Kernel: kernel, Header: 0xabcdef0123456789})
					out := newGuarded(make([]byte, bytes))
					err = pipe.RecvReduceCopy(make([]byte, bytes), out.bytes)
					var header *HeaderError
					require.ErrorAs(t, err, &header, flavour.name)
					require.Equal(t, &HeaderError{Peer: 10 + culprit, Want: 0xabcdef0123456789, Got: 0x2bcdef0123456789}, header)
					require.NoError(t, out.compare(make([]byte, bytes)))
				}
			}
		}
	}
}

// failed is a Watch whose communicator has ended.
type failed struct {
	onlyContext
	err error
}

func (f failed) Failed() error { return f.err }

// Every wait of every primitive, for data and for credit, ends with the
// communicator.
func TestWaitsOfPrimitivesEndWithTheCommunicator(t *testing.T) {
	lost := errors.New("the communicator has ended")
	for _, flavour := range flavours {
		for _, v := range verbs {
			t.Run(flavour.name+" "+verbNames[v], func(t *testing.T) {
				w := spin.NewWaiter(spin.Adaptive, 1)
				w.Bind(t.Context(), failed{err: lost}, 0)
				in := transport.NewRecvEnd(newConn(t, flavour.slotBytes(64), 0), 1)
				out := transport.NewSendEnd(newConn(t, flavour.slotBytes(64), 0), 1)
				for range transport.Slots {
					out.Advance(0, 0) // nobody takes them
				}
				kernel, err := arithmetics[0].kernel()
				require.NoError(t, err)
				pipe := flavour.open(Ends{From: []*transport.RecvEnd{in}, To: []*transport.SendEnd{out}}, 1, 64, flavour.chunks[0])
				pipe.Begin(Operation{Waiter: w, Kernel: kernel})
				c := chunk{verb: v}
				require.ErrorIs(t, c.do(pipe, make([]byte, 8), make([]byte, 8)), lost)
			})
		}
	}
}

func TestACancelledContextEndsAHalfReceivedChunk(t *testing.T) {
	for _, f := range []lineFormat{llFormat{}, ll128Format{}} {
		conn := newConn(t, slotBytes(f, 1000), 0)
		s, r := transport.NewSendEnd(conn, 1), transport.NewRecvEnd(conn, 0)
		// A writer that stops in the middle: the header and 3 lines of more.
		var header [8]byte
		f.pack(s.Slot(1), header[:], f.flag(0))
		f.pack(s.Slot(1)[f.lineBytes():], make([]byte, 3*f.payload()), f.flag(0))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		l := newLined(f, Ends{From: []*transport.RecvEnd{r}})
		l.Begin(Operation{Waiter: boundWaiter(ctx)})
		require.ErrorIs(t, l.Recv(make([]byte, 1000)), context.DeadlineExceeded)
	}
}

func TestNextSaysWhetherTheFirstSlotIsThere(t *testing.T) {
	for _, flavour := range flavours {
		for _, c := range flavour.chunks {
			conn := newConn(t, flavour.slotBytes(64), 0)
			w := boundWaiter(t.Context())
			out := flavour.open(Ends{To: []*transport.SendEnd{transport.NewSendEnd(conn, 1)}}, 1, 64, c)
			in := flavour.open(Ends{From: []*transport.RecvEnd{transport.NewRecvEnd(conn, 0)}}, 1, 64, c)
			out.Begin(Operation{Waiter: w})
			in.Begin(Operation{Waiter: w})
			for range transport.Slots / c.chunkSteps {
				require.True(t, out.Next(nil).Ready(), flavour.name)
				require.NoError(t, out.Send(nil))
			}
			require.False(t, out.Next(nil).Ready(), flavour.name)
			for range transport.Slots / c.chunkSteps {
				require.True(t, in.Next(nil).Ready(), flavour.name)
				require.NoError(t, in.Recv(nil))
			}
			require.False(t, in.Next(nil).Ready(), flavour.name)
			require.True(t, out.Next(nil).Ready(), flavour.name)
			require.Equal(t, 1, out.Next(nil).Peer())
			require.Equal(t, 0, in.Next(nil).Peer())
		}
	}
}

// A step allocates nothing once the scratch of its verb exists.
func TestStepsAllocateNothing(t *testing.T) {
	for _, flavour := range flavours {
		w := boundWaiter(t.Context())
		first, second := newConn(t, flavour.slotBytes(4096), 0), newConn(t, flavour.slotBytes(4096), 0)
		c := flavour.chunks[0]
		kernel, err := arithmetics[3].kernel()
		require.NoError(t, err)
		source := flavour.open(Ends{To: []*transport.SendEnd{transport.NewSendEnd(first, 1)}}, 4, 4096, c)
		middle := flavour.open(Ends{From: []*transport.RecvEnd{transport.NewRecvEnd(first, 0)}, To: []*transport.SendEnd{transport.NewSendEnd(second, 2)}}, 4, 4096, c)
		sink := flavour.open(Ends{From: []*transport.RecvEnd{transport.NewRecvEnd(second, 1)}}, 4, 4096, c)
		in, out := make([]byte, 4096), make([]byte, 4096)
		var failure error
		allocations := testing.AllocsPerRun(50, func() {
			for _, p := range []Primitives{source, middle, sink} {
				p.Begin(Operation{Waiter: w, Kernel: kernel})
			}
			failure = errors.Join(failure, source.Send(in), middle.RecvReduceSend(in), sink.Recv(out))
		})
		require.NoError(t, failure)
		require.Zero(t, allocations, flavour.name)
	}
}
