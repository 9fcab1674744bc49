package httpserve

import (
	"net"
	"testing"
)

func TestClientsOfOneIPv6NetworkCountAsOne(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "192.0.2.1", true}, {"192.0.2.1", "192.0.2.2", false}, {"192.0.2.1", "::ffff:192.0.2.1", true},
		{"2001:db8::1", "2001:db8::ffff:1", true}, {"2001:db8::1", "2001:db8:0:1::1", false},
	} {
		a, b := client(&net.TCPAddr{IP: net.ParseIP(c.a), Port: 1}), client(&net.TCPAddr{IP: net.ParseIP(c.b), Port: 2})
		if (a == b) != c.same || !a.IsValid() {
			t.Errorf("%s is %s, %s is %s", c.a, a, c.b, b)
		}
	}
	if p := client(&net.UnixAddr{Name: "x"}); p.IsValid() {
		t.Error(p)
	}
}
