package hosts

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/tck"
)

// tell returns the settings of guests/echo.wat.
func tell(needs uint32, keys []string, answer []byte) *string {
	text := strings.Join(keys, "\n")
	b := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, needs), uint32(len(text)))
	s := `{"a": "` + hex.EncodeToString(append(append(b, text...), answer...)) + `"}`
	return &s
}

// EchoRoom returns how many bytes of a request with n endpoints guests/echo.wat returns.
func EchoRoom(n int) int { return abi.MaxStateLen + 128*min(n, 16) }

// echoed returns the request that guests/echo.wat has returned.
func echoed(got *Response) ([]byte, error) {
	wire := slices.Clone(got.State)
	for i, x := range got.Results {
		b, err := hex.DecodeString(x.Reason)
		if err != nil {
			return nil, fmt.Errorf("the reason of endpoint %d is %.100q: want hexadecimal digits", i, x.Reason)
		}
		wire = append(wire, b...)
	}
	return wire, nil
}

// requests compares what guests read with the golden requests.
func (r *run) requests() {
	all := RequestVectors()
	for i := range all {
		v := &all[i]
		after := i + 1
		for after < len(all) && all[after].After == v.Name {
			after++
		}
		if v.After != "" {
			continue
		}
		if lacking := r.lacking(v.Needs, v.Keys); len(lacking) > 0 {
			for _, id := range []string{Needs, Keys} {
				if requirementOf(v) == id && (r.found[id] == nil || r.found[id] == untried) {
					r.found[id] = tck.Skipped("the host has no " + strings.Join(lacking, ", "))
				}
			}
			continue
		}
		what := func(v *RequestVector) string { return "request " + fmt.Sprintf("%q", v.Name) }
		if r.fail(requirementOf(v), what(v)+": load", r.load("guest", Guest("echo"), settingsOf(v))) {
			continue
		}
		for k := i; k < after; k++ {
			r.request(&all[k], what(&all[k]))
		}
		r.unload("guest")
	}
}

// settingsOf returns the settings with which guests/echo.wat asks for the inputs of a golden request.
func settingsOf(v *RequestVector) *string {
	if v.Handle == abi.NoSettings {
		return nil
	}
	return tell(v.Needs, v.Keys, nil)
}

// request sends a golden request to the loaded echo, and compares.
func (r *run) request(v *RequestVector, what string) {
	id := requirementOf(v)
	got, err := r.decide("guest", v.Request, nil)
	if r.fail(id, what, err) {
		return
	}
	wire, err := echoed(got)
	if r.fail(id, what, err) {
		return
	}
	m, err := ReadMessage(wire)
	if r.conclude(Wire, what, err) {
		return
	}
	if m.Role != abi.RoleShare {
		r.fail(Settings, what, fmt.Errorf("role is %s, that of the module is %s", m.Role, abi.RoleShare))
	}
	if m.Settings != v.Handle {
		r.fail(Settings, what, fmt.Errorf("settings is %d, want %d", m.Settings, v.Handle))
	}
	shown := Shown(v.Request, v.Needs, v.Keys)
	if diff := Difference(&m.Request, shown); diff != "" {
		err = errors.New(diff)
	}
	r.conclude(id, what, err)
}

// requirementOf returns the requirement that a golden request is for.
func requirementOf(v *RequestVector) string {
	switch {
	case v.Needs != 0:
		return Needs
	case len(v.Keys) > 0:
		return Keys
	case len(v.Request.State) > 0:
		return State
	case v.Request.OutcomesWindowMS != 0:
		return Unasked
	}
	return Fields
}

// lacking returns the inputs that are asked for and that the host does not have.
func (r *run) lacking(needs uint32, keys []string) (out []string) {
	for _, in := range inputs {
		asked := in.need&needs != 0 || in.kind != "" && slices.ContainsFunc(keys, func(k string) bool { return strings.HasPrefix(k, in.kind) })
		if asked && slices.Contains(r.missing, in.name) {
			out = append(out, in.name)
		}
	}
	return out
}

// responses makes guests/echo.wat answer the golden responses.
func (r *run) responses() {
	for _, v := range ResponseVectors() {
		id, what := responseRequirement(&v), fmt.Sprintf("response %q", v.Name)
		q := special(len(v.Conditions))
		for i, c := range v.Conditions {
			q.Endpoints[i].Conditions = c
			if c&abi.Chosen == 0 {
				q.Endpoints[i].Capacity = 0
			}
		}
		if len(v.Wire) == 0 || v.Refused != "" && r.found[Reads] != nil { // no bytes are an echo; who refuses good responses proves nothing
			continue
		}
		got, err := r.call(Guest("echo"), tell(0, nil, v.Wire), q)
		switch {
		case v.Refused == "":
			if err == nil {
				err = sameResponse(got, v.Want)
			}
		case err == nil:
			err = fmt.Errorf("it is accepted, though %s", v.Text)
		case isRefusal(errors.Unwrap(err)): // at load: it has called with the port of reference guests
		case isRefusal(err):
			err = nil
		}
		r.conclude(id, what, err)
	}
}

// responseRequirement returns the requirement that a golden response is for.
func responseRequirement(v *ResponseVector) string {
	switch {
	case v.Refused != "":
		return Refuses
	case v.Name == "out of range":
		return Clamps
	case v.Name == "a later minor version" || strings.HasPrefix(v.Name, "sections") || strings.HasPrefix(v.Name, "empty sections"):
		return ByStride
	}
	return Reads
}
