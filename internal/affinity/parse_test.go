package affinity

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for text, want := range map[string][]int{
		"": nil, "0": {0}, "0-3,8": {0, 1, 2, 3, 8}, " 1, 65 ": {1, 65}, "3-3,2": {2, 3},
	} {
		m, err := Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, m.List(), text)
		require.Equal(t, len(want), m.Count(), text)
	}
	for _, text := range []string{",", "a", "3-1", "-1", "1-", "99999999999", "0-70000"} {
		_, err := Parse(text)
		require.ErrorContains(t, err, "0-3,8", text)
	}
}
