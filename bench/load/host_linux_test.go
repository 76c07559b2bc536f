package load

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestHostTimeIsThatOfTheGivenProcessors(t *testing.T) {
	//            user nice system idle iowait irq softirq steal guest guest_nice
	const stat = "cpu  30 2 6 1000 100 3 4 5 10 0\n" +
		"cpu0 10 1 2 400 50 1 2 3 5 0\n" +
		"cpu1 20 1 4 600 50 2 2 2 5 0\n" +
		"cpu10 7 0 0 0 0 0 0 0 0 0\n" +
		"intr 123 0 0\n"
	for _, tc := range []struct {
		processors []int
		ticks      int
	}{
		{[]int{0}, 19}, {[]int{1}, 31}, {[]int{0, 1}, 50}, {[]int{0, 1, 2}, 50}, {[]int{10}, 7},
	} {
		assert.Equal(t, time.Duration(tc.ticks)*tick, busyOf([]byte(stat), tc.processors), tc.processors)
	}
	assert.Negative(t, busyOf([]byte(stat), []int{5}))
	assert.Negative(t, busyOf([]byte("cpu0 x 1 2 400 50 1 2 3 5 0\n"), []int{0}))
	assert.Negative(t, busyOf(nil, []int{0}))
}
