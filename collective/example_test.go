package collective_test

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
)

// Four ranks add up their gradients.
func Example() {
	err := collective.Run(4, func(c *collective.Comm) error {
		gradient := []float32{1, float32(c.Rank())} // what this rank has computed
		err := collective.AllReduce(context.Background(), c, gradient, gradient, collective.Sum)
		if err != nil {
			return err // names the ranks and the calls
		}
		if c.Rank() == 0 {
			fmt.Println(gradient)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: [4 6]
}

// Every rank brings a vector and gets the sum of all.
func ExampleAllReduce() {
	_ = collective.Run(3, func(c *collective.Comm) error {
		mine, sum := []int64{1, int64(c.Rank())}, make([]int64, 2)
		if err := collective.AllReduce(context.Background(), c, mine, sum, collective.Sum); err != nil {
			return err
		}
		if c.Rank() == 2 {
			fmt.Println("from", mine, "to", sum)
		}
		return nil
	})
	// Output: from [1 2] to [3 3]
}

// One goroutine computes while the sum is under way.
func ExampleAllReduceAsync() {
	_ = collective.Run(2, func(c *collective.Comm) error {
		ctx := context.Background()
		layer := []float64{float64(c.Rank()), 10}
		sum, err := collective.AllReduceAsync(ctx, c, layer, layer, collective.Sum)
		if err != nil {
			return err
		}
		// The next layer's gradients are computed here; layer is not touched.
		if err := sum.Wait(ctx); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println(layer)
		}
		return nil
	})
	// Output: [1 20]
}

// Each rank sends to its right and receives from its left. Outside a group, all
// would wait for room to send a large message before anybody received.
func ExampleGroup() {
	_ = collective.Run(4, func(c *collective.Comm) error {
		ctx := context.Background()
		right, left := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
		mine, theirs := []int32{int32(c.Rank())}, make([]int32, 1)
		g := collective.NewGroup()
		if err := collective.Send(ctx, g.On(c), mine, right); err != nil {
			return err
		}
		if err := collective.Recv(ctx, g.On(c), theirs, left); err != nil {
			return err
		}
		if err := g.Run(ctx); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println("rank 0 has received", theirs[0])
		}
		return nil
	})
	// Output: rank 0 has received 3
}

// A single goroutine drives all ranks: it records the call of each.
func ExampleGroup_oneGoroutine() {
	ctx := context.Background()
	comms, err := collective.InitAll(3)
	if err != nil {
		fmt.Println(err)
		return
	}
	g := collective.NewGroup()
	sums := make([][]float32, len(comms))
	for rank, c := range comms {
		defer c.Close()
		sums[rank] = []float32{float32(rank)}
		if err := collective.AllReduce(ctx, g.On(c), sums[rank], sums[rank], collective.Sum); err != nil {
			fmt.Println(err)
		}
	}
	if err := g.Run(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println(sums)
	// Output: [[3] [3] [3]]
}

// Ranks with even numbers and ranks with odd ones form a communicator each.
func ExampleComm_Split() {
	_ = collective.Run(5, func(c *collective.Comm) error {
		ctx := context.Background()
		half, err := c.Split(ctx, c.Rank()%2, 0)
		if err != nil {
			return err
		}
		defer half.Close()
		members := make([]int64, half.Size())
		if err := collective.AllGather(ctx, half, []int64{int64(c.Rank())}, members); err != nil {
			return err
		}
		if c.Rank() == 3 {
			fmt.Printf("rank 3 is rank %d of %v\n", half.Rank(), members)
		}
		return nil
	})
	// Output: rank 3 is rank 1 of [1 3]
}

// A trainer that holds bytes and an element type makes untyped calls.
func ExampleComm_Do() {
	_ = collective.Run(2, func(c *collective.Comm) error {
		weights := []dtype.BFloat16{dtype.ToBFloat16(0.5), dtype.ToBFloat16(float32(c.Rank()))}
		tensor := unsafe.Slice((*byte)(unsafe.Pointer(&weights[0])), 2*len(weights))
		err := c.Do(context.Background(), collective.Call{
			Kind: plan.AllReduce, Type: dtype.Bfloat, Op: collective.Max,
			Count: len(weights), Send: tensor, Recv: tensor,
		})
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println(weights)
		}
		return nil
	})
	// Output: [0.5 1]
}
