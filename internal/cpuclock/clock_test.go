package cpuclock

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// burn uses d of processor time on the calling thread.
func burn(t *testing.T, d time.Duration) {
	t.Helper()
	start, err := Thread()
	require.NoError(t, err)
	for {
		now, err := Thread()
		require.NoError(t, err)
		if now-start >= d {
			return
		}
	}
}

func supported(t *testing.T) {
	t.Helper()
	if Supported {
		return
	}
	_, err := Thread()
	require.ErrorIs(t, err, ErrUnsupported)
	_, err = Of(1)
	require.ErrorIs(t, err, ErrUnsupported)
	require.Zero(t, Current())
	t.Skip("this system has no clocks of threads")
}

func TestAThreadThatSleepsUsesNoProcessor(t *testing.T) {
	supported(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began, err := Thread()
	require.NoError(t, err)
	const nap = 200 * time.Millisecond
	time.Sleep(nap)
	used, err := Thread()
	require.NoError(t, err)
	require.Less(t, used-began, nap)
}

// Processor time is never more than the time that passes.
func TestAThreadThatWorksUsesAtMostTheTimeThatPasses(t *testing.T) {
	supported(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := time.Now()
	before, err := Thread()
	require.NoError(t, err)
	burn(t, 10*time.Millisecond)
	after, err := Thread()
	require.NoError(t, err)
	require.GreaterOrEqual(t, after-before, 10*time.Millisecond)
	// The clocks tick apart by a little.
	require.LessOrEqual(t, after-before, time.Since(start)+time.Millisecond)
}

// The clock of another thread is that thread's, not the caller's.
func TestTheClockOfAnotherThreadIsItsOwn(t *testing.T) {
	supported(t)
	type reading struct {
		thread int
		used   time.Duration
	}
	readings, done := make(chan reading), make(chan struct{})
	go func() {
		runtime.LockOSThread() // until it ends
		burn(t, 20*time.Millisecond)
		used, _ := Thread()
		readings <- reading{Current(), used}
		<-done
	}()
	r := <-readings
	defer close(done)
	used, err := Of(r.thread)
	require.NoError(t, err)
	require.GreaterOrEqual(t, used, r.used)
	require.NotEqual(t, r.thread, 0)

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	require.NotEqual(t, r.thread, Current())
	burn(t, 30*time.Millisecond)
	again, err := Of(r.thread)
	require.NoError(t, err)
	// It has slept while this one worked.
	require.Less(t, again-used, 30*time.Millisecond)
	mine, err := Of(Current())
	require.NoError(t, err)
	self, err := Thread()
	require.NoError(t, err)
	require.GreaterOrEqual(t, self, mine)
}

func TestWhatIsNoThreadHasNoClock(t *testing.T) {
	supported(t)
	for _, thread := range []int{-1, 0, 1 << 28} {
		_, err := Of(thread)
		require.Error(t, err, "%d", thread)
	}
}

func TestReadingAllocatesNothing(t *testing.T) {
	supported(t)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _ = Thread()
		_, _ = Of(Current())
	}))
}
