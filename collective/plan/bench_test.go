package plan_test

import (
	"fmt"
	"testing"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
)

// Build runs once for each new call of a communicator.
func BenchmarkBuild(b *testing.B) {
	for _, kind := range []plan.Kind{plan.AllReduce, plan.Broadcast, plan.AlltoAll, plan.Send} {
		for _, ranks := range []int{2, 16, 256} {
			b.Run(fmt.Sprintf("kind=%v/ranks=%d", kind, ranks), func(b *testing.B) {
				b.ReportAllocs()
				w := world(0, ranks)
				s := plan.Spec{Kind: kind, Type: dtype.Float32, Count: 1 << 20, Root: 1}
				for b.Loop() {
					build(b, s, w)
				}
			})
		}
	}
}
