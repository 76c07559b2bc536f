package collective_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
)

// inOrder is the loop over ranks that reproducible results equal: element by element
// the sum, in float32 or wider, of what every rank has, rank 0 first; rounded to the
// element type behind the last.
func inOrder(t dtype.Type, inputs [][]byte) []byte {
	size := t.Size()
	out := make([]byte, len(inputs[0]))
	for at := 0; at < len(out); at += size {
		switch t {
		case dtype.Float64:
			sum := 0.0
			for rank, in := range inputs {
				x := math.Float64frombits(binary.LittleEndian.Uint64(in[at:]))
				if rank == 0 {
					sum = x
				} else {
					sum += x
				}
			}
			binary.LittleEndian.PutUint64(out[at:], math.Float64bits(sum))
		default:
			var sum float32
			for rank, in := range inputs {
				var x float32
				if t == dtype.Float32 {
					x = math.Float32frombits(binary.LittleEndian.Uint32(in[at:]))
				} else {
					x = dtype.BFloat16(binary.LittleEndian.Uint16(in[at:])).Float32()
				}
				if rank == 0 {
					sum = x
				} else {
					sum += x
				}
			}
			if t == dtype.Float32 {
				binary.LittleEndian.PutUint32(out[at:], math.Float32bits(sum))
			} else {
				binary.LittleEndian.PutUint16(out[at:], uint16(dtype.ToBFloat16(sum)))
			}
		}
	}
	return out
}

// unlike draws numbers of very different magnitudes and both signs, whose sums in
// different orders differ.
func unlike(r *rand.Rand, t dtype.Type, count int) []byte {
	var b []byte
	for range count {
		x := r.NormFloat64() * math.Pow(2, float64(r.IntN(24)))
		switch t {
		case dtype.Float64:
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
		case dtype.Float32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
		default:
			b = binary.LittleEndian.AppendUint16(b, uint16(dtype.ToBFloat16(float32(x))))
		}
	}
	return b
}

// Whatever else is set, and wherever an element stands, the bits are those of the
// loop.
func TestReproducibleResultsAreThoseOfALoopOverRanks(t *testing.T) {
	r, _ := sampleSeed(t)
	for i := range 60 {
		n := 2 + r.IntN(6)
		config := randomConfig(r)
		config.Reproducible = true
		config.Algorithm = []plan.Algorithm{plan.AutoAlgorithm, plan.OneShot, plan.TwoShot}[r.IntN(3)]
		if i%6 == 0 {
			config.Transport = "tcp"
			config.Algorithm, config.Protocol = overSockets(config.Algorithm, config.Protocol)
		}
		typ := []dtype.Type{dtype.Float32, dtype.Float64, dtype.Bfloat}[r.IntN(3)]
		kind := []plan.Kind{plan.AllReduce, plan.Reduce, plan.ReduceScatter}[r.IntN(3)]
		count := 1 + r.IntN(1<<r.IntN(14))
		blocks := 1
		if kind == plan.ReduceScatter {
			blocks = n
		}
		inputs := make([][]byte, n)
		for rank := range inputs {
			inputs[rank] = unlike(r, typ, count*blocks)
		}
		want := inOrder(typ, inputs)
		block := count * typ.Size()
		inPlace := r.IntN(2) == 0
		comms, err := collective.InitAllConfig(n, config)
		require.NoError(t, err)
		errs := onRanks(t, comms, func(c *collective.Comm) error {
			send := append([]byte(nil), inputs[c.Rank()]...)
			recv := make([]byte, block)
			call := collective.Call{Kind: kind, Type: typ, Op: collective.Sum, Count: count, Root: n / 2, Send: send, Recv: recv}
			switch {
			case inPlace && kind == plan.ReduceScatter:
				call.Recv = send[c.Rank()*block:][:block]
			case inPlace:
				call.Recv = send
			}
			if err := c.Do(t.Context(), call); err != nil {
				return err
			}
			expect := want
			switch {
			case kind == plan.ReduceScatter:
				expect = want[c.Rank()*block:][:block]
			case kind == plan.Reduce && c.Rank() != n/2:
				return nil
			}
			for k := range expect {
				if call.Recv[k] != expect[k] {
					return fmt.Errorf("rank %d: byte %d of %d is %#x, want %#x", c.Rank(), k, len(expect), call.Recv[k], expect[k])
				}
			}
			return nil
		})
		for _, err := range errs {
			require.NoError(t, err, "%v %v of %d over %d ranks, in place %v, %+v", kind, typ, count, n, inPlace, config)
		}
		for _, c := range comms {
			require.NoError(t, c.Close())
		}
	}
}

func TestReproducibleResultsRefuseOtherAlgorithms(t *testing.T) {
	for _, algorithm := range []plan.Algorithm{plan.Ring, plan.Tree} {
		_, err := collective.InitAllConfig(2, collective.Config{Reproducible: true, Algorithm: algorithm})
		require.ErrorIs(t, err, collective.ErrInvalid)
	}
	t.Setenv("GOLLECTIVE_ALGO", "ring,tree")
	t.Setenv("GOLLECTIVE_REPRODUCIBLE", "1")
	err := collective.Run(2, func(c *collective.Comm) error {
		x := []float32{1}
		if err := collective.AllReduce(t.Context(), c, x, x, collective.Sum); err == nil {
			return fmt.Errorf("a sum in another order")
		} else {
			require.ErrorIs(t, err, collective.ErrUnsupported)
			require.ErrorContains(t, err, "oneshot")
		}
		k := []int32{1}
		return collective.AllReduce(t.Context(), c, k, k, collective.Sum)
	})
	require.NoError(t, err)
}
