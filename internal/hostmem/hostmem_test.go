package hostmem

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMemoryBeginsOnAPageAndIsZero(t *testing.T) {
	for _, size := range []int{1, 4096, 100000, 8 << 20} {
		memory, err := Allocate(size)
		require.NoError(t, err)
		require.Len(t, memory, size)
		require.Zero(t, reflect.ValueOf(memory).Pointer()%4096)
		require.Equal(t, size, bytes.Count(memory, []byte{0}))
		memory[size-1] = 1
		Free(memory)
	}
}
