package inproc_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/transport"
	"github.com/gollective/gollective/transport/inproc"
	"github.com/gollective/gollective/transport/transporttest"
)

func TestHubIsATransport(t *testing.T) {
	transporttest.Run(t, func() transport.Transport { return inproc.NewHub() })
}

func TestHubThatStartsLateIsATransport(t *testing.T) {
	transporttest.Run(t, func() transport.Transport { return inproc.NewHubAt(1<<32 - 100) })
}

func TestBothEndsGetTheSameConn(t *testing.T) {
	h := inproc.NewHub()
	link := transport.Link{From: 3, To: 5, Channel: 1, Lane: 2, Slot: 256}
	a, err := h.Connect(link, transport.Producer)
	require.NoError(t, err)
	b, err := h.Connect(link, transport.Consumer)
	require.NoError(t, err)
	require.Same(t, a, b)
}

func TestConnsOfALateHubBeginAtItsStep(t *testing.T) {
	h := inproc.NewHubAt(12345)
	c, err := h.Connect(transport.Link{From: 0, To: 1, Slot: 128}, transport.Producer)
	require.NoError(t, err)
	require.EqualValues(t, 12345, transport.NewSendEnd(c, 1).Step())
	require.EqualValues(t, 12345, transport.NewRecvEnd(c, 0).Step())
}

func TestErrorsNameTheRanksAndTheChannel(t *testing.T) {
	_, err := inproc.NewHub().Connect(transport.Link{From: 3, To: 5, Channel: 7, Slot: 1}, transport.Producer)
	require.ErrorContains(t, err, "rank 3 to rank 5, channel 7")
}
