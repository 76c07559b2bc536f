package address

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPortsText(t *testing.T) {
	for text, want := range map[string]Ports{
		"": {}, "0": {}, "5000": {5000, 5000}, "5000-5010": {5000, 5010}, "7-7": {7, 7}, "65535": {65535, 65535},
	} {
		got, err := ParsePorts(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		require.NoError(t, got.Check())
	}
	for _, text := range []string{"x", "-1", "5-", "-5", "10-5", "65536", "1-65536", "0-5", "1-2-3", " 5"} {
		_, err := ParsePorts(text)
		require.ErrorIs(t, err, ErrConfig, text)
	}
}

func TestInterfaceLists(t *testing.T) {
	for _, tc := range []struct {
		list string
		yes  []string
		no   []string
	}{
		{"", []string{"lo", "eth0"}, nil},
		{"eth", []string{"eth0", "eth1", "eth"}, []string{"lo", "beth0"}},
		{"eth,ib0", []string{"eth0", "ib0", "ib01"}, []string{"lo", "ib1"}},
		{"=eth0", []string{"eth0"}, []string{"eth01", "eth"}},
		{"=eth0,eth1", []string{"eth0", "eth1"}, []string{"eth11"}},
		{"^docker,lo", []string{"eth0"}, []string{"docker0", "lo"}},
		{"^=lo,eth0", []string{"lo0", "eth01"}, []string{"lo", "eth0"}},
		{"eth,^docker,=wlan0", []string{"eth0", "wlan0"}, []string{"docker0", "wlan01", "lo"}},
		{"eth,^=eth1", []string{"eth0", "eth11"}, []string{"eth1"}},
		{" eth , ib ", []string{"eth0", "ib0"}, []string{"lo"}},
	} {
		t.Run(tc.list, func(t *testing.T) {
			f, err := ParseInterfaces(tc.list)
			require.NoError(t, err)
			for _, name := range tc.yes {
				require.True(t, f.Allows(name), name)
			}
			for _, name := range tc.no {
				require.False(t, f.Allows(name), name)
			}
		})
	}
	for _, list := range []string{",", "eth,", "^", "=", "^^a", "==a", "=^a", "a b"} {
		_, err := ParseInterfaces(list)
		require.ErrorIs(t, err, ErrConfig, list)
	}
}

func TestAddressChoice(t *testing.T) {
	nics := []NIC{
		{"lo", netip.MustParseAddr("127.0.0.1")},
		{"docker0", netip.MustParseAddr("172.17.0.1")},
		{"virbr0", netip.MustParseAddr("192.168.122.1")},
		{"eth0", netip.MustParseAddr("169.254.3.4")}, // link-local
		{"eth0", netip.MustParseAddr("10.0.0.5")},
		{"eth1", netip.MustParseAddr("10.1.0.5")},
		{"lo", netip.MustParseAddr("::1")},
		{"eth0", netip.MustParseAddr("fe80::5")},
		{"eth1", netip.MustParseAddr("2001:db8::5")},
	}
	loopback, bridged := nics[:1], nics[:3]
	for _, tc := range []struct {
		name         string
		nics         []NIC
		list, family string
		routed       string
		loopbackJob  bool
		want         string // "" is an error; rootHere has more than one
	}{
		{"the one that routes to the root", nics, "", "", "10.1.0.5", false, "10.1.0.5"},
		{"mapped addresses are IPv4", nics, "", "", "::ffff:10.1.0.5", false, "10.1.0.5"},
		{"no route known", nics, "", "", "", false, "10.0.0.5"},
		{"the root is here, by a name that means loopback", nics, "", "", "127.0.0.1", false, "10.0.0.5 10.1.0.5 2001:db8::5 172.17.0.1 192.168.122.1"},
		{"the root is here, and a list", nics, "eth", FamilyIPv4, "10.1.0.5", false, "10.0.0.5 10.1.0.5"},
		{"all of the job is on loopback", nics, "", "", "127.0.0.1", true, "127.0.0.1"},
		{"loopback job reached over a unix socket", nics, "", "", "", true, "127.0.0.1"},
		{"only loopback", loopback, "", "", "127.0.0.1", false, "127.0.0.1"},
		{"bridges only when there is nothing better", bridged, "", "", "", false, "172.17.0.1"},
		{"bridges when they route there", nics, "", "", "172.17.0.1", false, "172.17.0.1"},
		{"the user's list goes before the route", nics, "eth0", "", "10.1.0.5", false, "10.0.0.5"},
		{"the user's list may name loopback", nics, "=lo", "", "10.1.0.5", false, "127.0.0.1"},
		{"the user's list may name bridges", nics, "virbr", "", "", false, "192.168.122.1"},
		{"excluded", nics, "^eth0", "", "10.0.0.5", false, "10.1.0.5"},
		{"not loopback when all else is excluded but a bridge", nics, "^eth,virbr", "", "", false, "172.17.0.1"},
		{"family", nics, "", FamilyIPv6, "10.1.0.5", false, "2001:db8::5"},
		{"family of a loopback job", nics, "", FamilyIPv6, "127.0.0.1", true, "::1"},
		{"never link-local", nics, "eth0", FamilyIPv6, "fe80::5", false, ""},
		{"no such interface", nics, "ib", "", "10.1.0.5", false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, err := ParseInterfaces(tc.list)
			require.NoError(t, err)
			var routed netip.Addr
			if tc.routed != "" {
				routed = netip.MustParseAddr(tc.routed)
			}
			got, err := Choose(tc.nics, f, tc.family, routed, strings.Contains(tc.want, " "), tc.loopbackJob)
			if tc.want == "" {
				require.ErrorIs(t, err, ErrConfig)
				require.ErrorContains(t, err, "eth1 10.1.0.5", "it says what there is")
				return
			}
			require.NoError(t, err)
			var text []string
			for _, n := range got {
				text = append(text, n.Addr.String())
			}
			require.Equal(t, tc.want, strings.Join(text, " "))
		})
	}
}

func FuzzParsePortsAndInterfaces(f *testing.F) {
	f.Add("5000-5010")
	f.Add("^docker,=lo")
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := ParsePorts(text); err == nil {
			require.NoError(t, p.Check())
		}
		if flt, err := ParseInterfaces(text); err == nil {
			flt.Allows("eth0")
			for _, r := range flt.rules {
				require.NotEmpty(t, r.name)
			}
		}
	})
}
