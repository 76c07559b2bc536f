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
