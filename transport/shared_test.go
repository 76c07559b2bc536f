package transport

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/internal/spin"
)

// Two builds that map the same FIFO must agree on every word of it.
func TestSharedFIFOsAreLaidOutAsAgreed(t *testing.T) {
	var h sharedHead
	require.EqualValues(t, 0, unsafe.Offsetof(h.mark))
	require.EqualValues(t, 128, unsafe.Offsetof(h.control))
	require.EqualValues(t, 384, unsafe.Offsetof(h.consumer))
	require.EqualValues(t, 512, unsafe.Offsetof(h.producer))
	require.EqualValues(t, 640, unsafe.Sizeof(h))
	require.LessOrEqual(t, unsafe.Sizeof(h), uintptr(sharedStart))
	require.Equal(t, 4096+8*512, SharedBytes(512))
	require.Equal(t, [8]byte{'G', 'O', 'L', 'L', 'F', 'I', 'F', 'O'}, *(*[8]byte)(unsafe.Pointer(&[]uint64{sharedMark}[0])))
}

// sharedMemory is what a process maps: aligned and zero.
func sharedMemory(slot int) []byte { return allocate(SharedBytes(slot)) }

// Two Conns over one piece of memory, as in two processes, are one FIFO.
func TestTwoMappingsAreOneFIFO(t *testing.T) {
	memory := sharedMemory(256)
	MarkShared(memory, 256)
	require.NoError(t, CheckShared(memory, 256))
	var beds []spin.Bed
	a, err := ShareConn(memory, 256, beds, beds)
	require.NoError(t, err)
	b, err := ShareConn(memory, 256, beds, beds)
	require.NoError(t, err)
	s, r := NewSendEnd(a, 1), NewRecvEnd(b, 0)
	for i := range 3 * Slots {
		require.False(t, r.Filled(1).Ready())
		require.True(t, s.Credit(Slots).Ready())
		s.Slot(1)[255] = byte(i)
		s.Post(1, uint64(i), len(s.Slot(1)))
		require.True(t, r.Filled(1).Ready())
		require.EqualValues(t, i, r.Header())
		require.EqualValues(t, i, r.Slot(1)[255])
		r.Release(1)
	}
	require.NoError(t, CheckShared(memory, 256), "nobody writes the mark")
}

func TestMemoryThatIsNoSuchFIFOIsRefused(t *testing.T) {
	memory := sharedMemory(256)
	require.Error(t, CheckShared(memory, 256), "not marked")
	MarkShared(memory, 256)
	require.NoError(t, CheckShared(memory, 256))
	require.Error(t, CheckShared(memory, 128), "another slot size")
	require.Error(t, CheckShared(memory, 512), "it is too short for that")
	require.Error(t, CheckShared(memory[:100], 256))
	for _, tc := range []struct{ bytes, slot int }{{SharedBytes(256) - 1, 256}, {0, 256}, {SharedBytes(256), 0}, {SharedBytes(256), 100}} {
		_, err := ShareConn(memory[:tc.bytes], tc.slot, nil, nil)
		require.Error(t, err, "%+v", tc)
	}
}

func TestALaterFIFOHasTheOldBytesAndNewSteps(t *testing.T) {
	c, s, r := bothEnds(t, Line, 0)
	copy(s.Slot(1), "old")
	s.Post(1, 5, len(s.Slot(1)))
	require.True(t, r.Filled(1).Ready())
	r.Release(1)
	later := c.Later(1 << 32)
	s, r = NewSendEnd(later, 1), NewRecvEnd(later, 0)
	require.EqualValues(t, 1<<32, s.Step())
	require.False(t, r.Filled(1).Ready())
	require.True(t, s.Credit(Slots).Ready())
	require.Equal(t, "old", string(r.Slot(1)[:3]))
	s.Slot(1)[0] = 'x'
	require.Equal(t, "old", string(c.slots(0, 1)[:3]), "the old FIFO stays as it is")
}
