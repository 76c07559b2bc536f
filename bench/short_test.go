package bench

import (
	"context"
	"testing"

	"github.com/gollective/gollective/collective"
)

// BenchmarkShort is the smallest AllReduce of two goroutine ranks: what a call costs
// besides its data.
func BenchmarkShort(b *testing.B) {
	comms, err := collective.InitAll(2)
	if err != nil {
		b.Fatal(err)
	}
	defer comms[0].Close()
	defer comms[1].Close()
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
	go func() { done <- loop(comms[1]) }()
	if err := loop(comms[0]); err != nil {
		b.Fatal(err)
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
