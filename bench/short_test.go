package bench

import (
	"context"
	"fmt"
	"testing"

	"github.com/gollective/gollective/collective"
)

// BenchmarkShort is the smallest AllReduce of goroutine ranks: what a call costs
// besides its data. With more ranks than processors it is what a turn of all of them
// costs.
func BenchmarkShort(b *testing.B) {
	for _, ranks := range []int{2, 4, 8} {
		b.Run(fmt.Sprintf("ranks=%d", ranks), func(b *testing.B) { benchmarkShort(b, ranks) })
	}
}

func benchmarkShort(b *testing.B, ranks int) {
	comms, err := collective.InitAll(ranks)
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error)
	loop := func(c *collective.Comm) error {
		buf := make([]float32, 32)[:1] // a cache line of its own
		for range b.N {
			if err := collective.AllReduce(context.Background(), c, buf, buf, collective.Sum); err != nil {
				return err
			}
		}
		return nil
	}
	b.ReportAllocs()
	b.ResetTimer()
	for _, c := range comms[1:] {
		go func() { done <- loop(c) }()
	}
	if err := loop(comms[0]); err != nil {
		b.Fatal(err)
	}
	for range comms[1:] {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	for _, c := range comms {
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
