package dtype

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// nccl.h's numbering and the sizes of ncclTypeSize; the names are nccl-tests'.
func TestTypesAreNCCLs(t *testing.T) {
	want := []struct {
		name    string
		size    int
		integer bool
	}{
		{"int8", 1, true}, {"uint8", 1, true}, {"int32", 4, true}, {"uint32", 4, true},
		{"int64", 8, true}, {"uint64", 8, true}, {"half", 2, false}, {"float", 4, false},
		{"double", 8, false}, {"bfloat16", 2, false}, {"f8e4m3", 1, false}, {"f8e5m2", 1, false},
	}
	require.Len(t, All(), len(want))
	for i, typ := range All() {
		require.Equal(t, Type(i), typ)
		require.Equal(t, want[i].name, typ.String())
		require.Equal(t, want[i].size, typ.Size())
		require.Equal(t, want[i].integer, typ.Integer())
		require.Equal(t, !want[i].integer, typ.Float())
		parsed, err := Parse(want[i].name)
		require.NoError(t, err)
		require.Equal(t, typ, parsed)
	}
}

func TestInvalidTypes(t *testing.T) {
	bad := Type(len(All()))
	require.False(t, bad.Valid())
	require.False(t, bad.Float())
	require.False(t, bad.Integer())
	require.Zero(t, bad.Size())
	require.Equal(t, "dtype(12)", bad.String())
	_, err := Parse("float7")
	require.ErrorContains(t, err, `"float7"`)
}
