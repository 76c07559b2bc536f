package collective_test

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/gollective/gollective/collective"
)

// Ranks that may be processes have two large buffers in memory that the others can map,
// and use them again and again. The same function works with a communicator of Init.
func ExampleComm_MemAlloc() {
	train := func(c *collective.Comm) error {
		const count = 1 << 16
		var buffers [2][]float32
		for i := range buffers {
			memory, err := c.MemAlloc(4 * count)
			if err != nil {
				return err
			}
			defer c.MemFree(memory)
			// It begins on a page: a slice of any numbers fits.
			buffers[i] = unsafe.Slice((*float32)(unsafe.Pointer(&memory[0])), count)
		}
		gradient, sum := buffers[0], buffers[1]
		for step := range 3 {
			for i := range gradient {
				gradient[i] = float32(step + c.Rank()) // what this rank has computed
			}
			if err := collective.AllReduce(context.Background(), c, gradient, sum, collective.Sum); err != nil {
				return err
			}
			if c.Rank() == 0 {
				fmt.Println("step", step, "sums are", sum[0], "to", sum[count-1])
			}
		}
		return nil
	}
	if err := collective.Run(2, train); err != nil {
		fmt.Println(err)
	}
	// Output:
	// step 0 sums are 1 to 1
	// step 1 sums are 3 to 3
	// step 2 sums are 5 to 5
}

// The tensors of a model are summed up in one launch. The calls may be any
// collectives, as long as all ranks record the same.
func ExampleGroup_severalTensors() {
	err := collective.Run(3, func(c *collective.Comm) error {
		ctx := context.Background()
		weights, bias := []float32{1, 2, 3}, []float64{float64(c.Rank())}
		g := collective.NewGroup()
		if err := collective.AllReduce(ctx, g.On(c), weights, weights, collective.Sum); err != nil {
			return err
		}
		if err := collective.AllReduce(ctx, g.On(c), bias, bias, collective.Max); err != nil {
			return err
		}
		if err := g.Run(ctx); err != nil { // now they move
			return err
		}
		if c.Rank() == 1 {
			fmt.Println(weights, bias)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: [3 6 9] [2]
}
