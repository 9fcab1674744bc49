package sdk

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// scaled gives every endpoint its weight, and declares a key with it.
type scaled struct {
	weight int64
}

func (s *scaled) Configure(text []byte) error {
	if err := ParseSettings(text, func(f *Fields) { f.Int("weight", &s.weight, 0, 1000) }); err != nil {
		return err
	}
	if s.weight == 0 {
		return errors.New("weight is missing")
	}
	return nil
}

func (s *scaled) Keys() []string {
	return []string{PodLabel("a"), PodAnnotation(fmt.Sprint("w", int(s.weight)))}
}

func (s *scaled) Decide(_ *Request, resp *Response) error {
	resp.SetShare(0, int(s.weight))
	return nil
}

func TestInstanceServesAnyNumberOfSettings(t *testing.T) {
	in := instance{newPlugin: func() Plugin { return &scaled{} }}
	for i := range 100 {
		if i%10 == 0 { // a refusal takes no handle and changes no other settings
			if code, err := in.configure([]byte(`{"wieght": 1}`)); code != abi.CodeFailed || err == nil {
				t.Fatalf("code %d, %v", code, err)
			}
		}
		if handle, err := in.configure(fmt.Appendf(nil, `{"weight": %d}`, i+1)); err != nil || handle != int32(i) {
			t.Fatalf("handle %d, %v", handle, err)
		}
	}
	var e abi.Encoder
	var d abi.Decoder
	decide := func(handle uint32) (uint32, int64, error) {
		var resp abi.Response
		room := make([]byte, abi.MaxResponse(1))
		n, err := in.decideBytes(e.AppendRequest(nil, requestOf(1), abi.View{Settings: handle}), room)
		if err != nil {
			return 0, n, err
		}
		err = d.DecodeResponse(room[:n], 1, &resp)
		return resp.Results[0].Value, n, err
	}
	keys := make([]byte, abi.MaxKeysLen)
	for _, handle := range []uint32{99, 0, 7, 42} {
		if w, _, err := decide(handle); err != nil || w != handle+1 {
			t.Errorf("handle %d: value %d, %v", handle, w, err)
		}
		n, err := in.writeKeys(handle, keys)
		if want := fmt.Sprintf("label:a\nannotation:w%d", handle+1); err != nil || string(keys[:n]) != want {
			t.Errorf("handle %d: keys %q, %v", handle, keys[:max(n, 0)], err)
		}
	}
	for handle, want := range map[uint32]string{100: "settings handle 100 is unknown", 1 << 31: "is unknown", abi.NoSettings: "without settings: weight is missing"} {
		if _, code, err := decide(handle); code != abi.CodeNotConfigured || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("handle %d: code %d, %v, want %q", handle, code, err, want)
		}
		if code, err := in.writeKeys(handle, keys); code != abi.CodeNotConfigured || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("keys of handle %d: code %d, %v, want %q", handle, code, err, want)
		}
	}
	if code, err := in.writeKeys(0, keys[:5]); code != abi.CodeNoRoom || err == nil {
		t.Errorf("keys in 5 bytes: code %d, %v", code, err)
	}
}

func TestModuleThatRegistersNoPlugin(t *testing.T) {
	var in instance
	if code, err := in.configure(nil); code != abi.CodeNotConfigured || !errors.Is(err, errUnregistered) {
		t.Errorf("code %d, %v", code, err)
	}
	if code, err := in.writeKeys(abi.NoSettings, nil); code != abi.CodeNotConfigured || !errors.Is(err, errUnregistered) {
		t.Errorf("code %d, %v", code, err)
	}
}
