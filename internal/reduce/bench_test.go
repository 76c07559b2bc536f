package reduce

import (
	"fmt"
	"testing"

	"github.com/gollective/gollective/dtype"
)

// SetBytes counts one operand, as an algorithm bandwidth does.
func BenchmarkReduce(b *testing.B) {
	for _, bc := range []struct {
		typ dtype.Type
		op  Op
	}{
		{dtype.Float32, Sum}, {dtype.Float32, Max}, {dtype.Float64, Sum}, {dtype.Int32, Sum}, {dtype.Int64, Sum},
		{dtype.Int8, Sum}, {dtype.Half, Sum}, {dtype.Bfloat, Sum}, {dtype.Bfloat, Max}, {dtype.F8E4M3, Sum},
	} {
		for _, operands := range []int{2, 4} {
			for _, size := range []int{4 << 10, 64 << 10, 4 << 20} {
				b.Run(fmt.Sprintf("type=%v/op=%v/operands=%d/bytes=%d", bc.typ, bc.op, operands, size), func(b *testing.B) {
					benchmark(b, bc.typ, bc.op, operands, size)
				})
			}
		}
	}
}

func benchmark(b *testing.B, typ dtype.Type, op Op, operands, size int) {
	k := mustKernel(b, typ, op, operands)
	dst, srcs := make([]byte, size), make([][]byte, operands)
	for i := range srcs {
		srcs[i] = make([]byte, size)
		for e := range size / typ.Size() {
			store(typ, srcs[i], e, ScalarOf(typ, float64((e*7+i*13)%31-15)).Bits)
		}
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		k.Reduce(dst, srcs)
	}
}

// One pass against a result and a copy of it; both kinds of stores where results are
// large.
func BenchmarkReduceTo(b *testing.B) {
	for _, size := range []int{4, 64, 256, 4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		k := mustKernel(b, dtype.Float32, Sum, 2)
		var bufs [4][]byte
		for i := range bufs {
			bufs[i] = newBuffer(size, 0).body
			clear(bufs[i])
		}
		dsts, srcs := bufs[:2], bufs[2:]
		run := func(how string, body func()) {
			b.Run(fmt.Sprintf("bytes=%d/how=%s", size, how), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					body()
				}
			})
		}
		run("one-pass", func() { k.ReduceTo(dsts, srcs) })
		run("reduce-copy", func() {
			k.Reduce(dsts[0], srcs)
			copy(dsts[1], dsts[0])
		})
		if streaming := k.Streaming(2 * size); streaming.streams && canStream() {
			run("streaming", func() { streaming.ReduceTo(dsts, srcs) })
		}
	}
}

func BenchmarkPre(b *testing.B) {
	for _, typ := range []dtype.Type{dtype.Int32, dtype.Float32, dtype.Float64, dtype.Half, dtype.Bfloat, dtype.F8E4M3} {
		b.Run(fmt.Sprintf("type=%v/bytes=65536", typ), func(b *testing.B) {
			k := mustKernel(b, typ, PreMulSum, 3)
			dst, src := make([]byte, 64<<10), make([]byte, 64<<10)
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				k.Pre(dst, src)
			}
		})
	}
}

// Every routine on operands that stay in the first-level cache.
func BenchmarkRoutines(b *testing.B) {
	for _, typ := range dtype.All() {
		for _, op := range []Op{Sum, Prod, Max} {
			b.Run(fmt.Sprintf("type=%v/op=%v", typ, op), func(b *testing.B) {
				benchmark(b, typ, op, 2, 8<<10)
			})
		}
	}
}

// What an odd length costs: no whole vector, or one and a rest.
func BenchmarkRest(b *testing.B) {
	for _, typ := range []dtype.Type{dtype.Int8, dtype.Float32, dtype.Half, dtype.Bfloat, dtype.F8E4M3} {
		for _, size := range []int{4, 28, 60} {
			b.Run(fmt.Sprintf("type=%v/bytes=%d", typ, size), func(b *testing.B) {
				benchmark(b, typ, Sum, 2, size)
			})
		}
	}
}
