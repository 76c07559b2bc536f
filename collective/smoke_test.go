package collective

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSmoke(t *testing.T) {
	for n := 1; n < 6; n++ {
		for _, count := range []int{0, 1, 5, 1000, 70000, 3000000} {
			err := Run(n, func(c *Comm) error {
				send, recv := make([]float32, count), make([]float32, count)
				for i := range send {
					send[i] = float32(c.Rank() + i%7)
				}
				for k := 0; k < 3; k++ {
					if err := AllReduce(context.Background(), c, send, recv, Sum); err != nil {
						return err
					}
					for i, got := range recv {
						want := float32(n*(n-1)/2 + n*(i%7))
						if got != want {
							return fmt.Errorf("recv[%d] = %v, want %v", i, got, want)
						}
					}
				}
				return nil
			})
			require.NoError(t, err, "n %d count %d", n, count)
		}
	}
}
