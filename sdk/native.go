//go:build !wasip1

package sdk

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/manifest"
)

// NativePlugin runs a plugin without a sandbox but through the same wire form: for tests, and as the reference for the
// same plugin in the sandbox. It is used by one goroutine at a time.
type NativePlugin struct {
	instance  instance
	role      Role
	counters  []string
	revision  string
	keys      []string
	encoder   abi.Encoder
	decoder   abi.Decoder
	req, resp []byte
}

// NewNativePlugin creates and configures a plugin.
func NewNativePlugin(newPlugin func() Plugin, settings []byte) (*NativePlugin, error) {
	p := newPlugin()
	if err := p.Configure(settings); err != nil {
		return nil, fmt.Errorf("plugin %T: settings: %w", p, err)
	}
	role, counters := RoleShare, []string(nil)
	if d, ok := p.(Describer); ok {
		m, err := manifest.ParseFile([]byte(d.Manifest()))
		if err != nil {
			return nil, fmt.Errorf("plugin %T: manifest: %w", p, err)
		}
		role = m.ABIRole()
		for _, c := range m.Counters {
			counters = append(counters, c.Name)
		}
	}
	keys, err := abi.ParseKeys(strings.Join(keysOf(p), "\n"))
	if err != nil {
		return nil, fmt.Errorf("plugin %T: %w", p, err)
	}
	sum := sha256.Sum256(settings)
	return &NativePlugin{instance: instance{plugin: p}, role: role, counters: counters, keys: keys, revision: fmt.Sprintf("native:%T:%x", p, sum[:8])}, nil
}

// Decide calls the plugin. As in the sandbox, it sees only the inputs that it needs, and the keys that it declares, and a panic
// is returned as an error.
func (n *NativePlugin) Decide(req *abi.Request, resp *abi.Response) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("plugin %T: panic: %v", n.instance.plugin, p)
		}
	}()
	return n.DecideNoRecover(req, resp)
}

// DecideNoRecover is Decide without recovering from panics, so that a test shows their stack trace.
func (n *NativePlugin) DecideNoRecover(req *abi.Request, resp *abi.Response) error {
	n.req = n.encoder.AppendRequest(n.req[:0], req, abi.View{Role: n.role, Settings: abi.NoSettings, Needs: n.Needs(), Keys: n.keys})
	if room := abi.MaxResponse(len(req.Endpoints)); len(n.resp) < room {
		n.resp = make([]byte, room)
	}
	size, err := n.instance.decideBytes(n.req, n.resp)
	if err != nil {
		return fmt.Errorf("plugin %T: %s: %w", n.instance.plugin, abi.CodeText(size), err)
	}
	if err := n.decoder.DecodeResponse(n.resp[:size], len(req.Endpoints), resp); err != nil {
		return fmt.Errorf("plugin %T: %w", n.instance.plugin, err)
	}
	return nil
}

// Role returns what the plugin decides.
func (n *NativePlugin) Role() abi.Role { return n.role }

// Counters returns the names of the plugin's counters, as in its manifest.
func (n *NativePlugin) Counters() []string { return n.counters }

// Needs returns the inputs that the plugin needs with its settings, as abi.Need bits.
func (n *NativePlugin) Needs() uint32 { return needsOf(n.instance.plugin) }

// Keys returns the keys that the plugin declares, see Keyer.
func (n *NativePlugin) Keys() []string { return n.keys }

// Revision identifies the plugin type and its settings.
func (n *NativePlugin) Revision() string { return n.revision }
