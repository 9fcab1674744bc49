package sdk

import (
	"errors"
	"strconv"
	"strings"
	"unsafe"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// instance is a plugin with all of its settings and the memory that its calls share, in the sandbox and in a NativePlugin.
type instance struct {
	newPlugin func() Plugin
	plugin    Plugin   // for requests without settings; nil: not created yet
	plugins   []Plugin // by settings handle
	req       Request
	resp      Response
	err       error // of the last negative code
}

// configure creates a plugin with settings and returns its handle.
func (in *instance) configure(settings []byte) (handle int32, err error) {
	if in.newPlugin == nil {
		return abi.CodeNotConfigured, errUnregistered
	}
	p := in.newPlugin()
	if err := p.Configure(settings); err != nil {
		return abi.CodeFailed, err
	}
	in.plugins = append(in.plugins, p)
	return int32(len(in.plugins) - 1), nil
}

// pluginFor returns the plugin for a settings handle.
func (in *instance) pluginFor(handle uint32) (Plugin, error) {
	if handle != abi.NoSettings {
		if uint64(handle) >= uint64(len(in.plugins)) {
			return nil, errors.New("settings handle " + number(handle) + " is unknown")
		}
		return in.plugins[handle], nil
	}
	if in.plugin == nil {
		if in.newPlugin == nil {
			return nil, errUnregistered
		}
		p := in.newPlugin()
		if err := p.Configure(nil); err != nil {
			return nil, errors.New("without settings: " + err.Error())
		}
		in.plugin = p
	}
	return in.plugin, nil
}

// writeKeys writes the keys that a plugin declares to the buffer, one a line, and returns their length.
func (in *instance) writeKeys(handle uint32, to []byte) (n int32, err error) {
	p, err := in.pluginFor(handle)
	if err != nil {
		return abi.CodeNotConfigured, err
	}
	text := strings.Join(keysOf(p), "\n")
	if len(text) > len(to) {
		return abi.CodeNoRoom, errors.New("keys: " + number(len(text)) + " bytes, the buffer has " + number(len(to)))
	}
	return int32(copy(to, text)), nil
}

// decideBytes decides the request in req and writes the response to resp. It returns the length of the response, or a negative
// code and an error.
func (in *instance) decideBytes(req, resp []byte) (int64, error) {
	n := in.decide(unsafe.Pointer(unsafe.SliceData(req)), uint64(len(req)), unsafe.Pointer(unsafe.SliceData(resp)), uint64(len(resp)))
	if n < 0 {
		return n, in.err
	}
	return n, nil
}

// The first eight bytes of a request of this version, and the initial reset, reason and group of a result.
const (
	currentVersion = abi.RequestMagic | abi.Major<<32 | abi.Minor<<48
	resultDefaults = abi.NeverReset | abi.NoReasonIndex<<32 // group 0
)

// decide decides the request of size bytes at req and writes the response to the room bytes at resp. It returns the
// length of the response, or a negative code with in.err set.
//
// In a Go guest a call compiles to a dozen wasm instructions, a comparison to four and storing a pointer to ten. For few
// endpoints half the cost of a call is here. So this is one function that reads two fields at a time and takes the slow path,
// Request.view, only for requests with outcomes, values or groups, or that are not laid out without gaps, as abi.Encoder does.
func (in *instance) decide(req unsafe.Pointer, size uint64, resp unsafe.Pointer, room uint64) int64 {
	if size < abi.LeastRequest {
		return in.failShort(size)
	}
	// Adjacent fields are read together: endpoints at 72 (offset, count), stride and zones' offset, zones' count and
	// stride, texts at 96 (offset, count), their stride and the state's offset. No sum overflows: all terms are < 2⁴⁰.
	endpoints, texts := u64(req, abi.ReqEndpointsOffset), u64(req, abi.ReqStringsOffset)
	zones, strides := u64(req, abi.ReqZonesCount), u64(req, abi.ReqStringsStride)
	n := endpoints >> 32
	behindEndpoints := abi.ReqSize + n*abi.EndpointSize
	behindZones := behindEndpoints + uint64(uint32(zones))*abi.ZoneSize
	text, state := uint64(uint32(texts)), strides>>32
	other := (u64(req, abi.ReqMagic) ^ currentVersion) | (u64(req, abi.ReqTotal) ^ (size | abi.ReqSize<<32)) |
		(uint64(uint32(endpoints)) ^ abi.ReqSize) | (u64(req, abi.ReqEndpointsStride) ^ (abi.EndpointSize | behindEndpoints<<32)) |
		(zones>>32 ^ abi.ZoneSize) | (uint64(uint32(strides)) ^ abi.StringSize) | text%8 |
		uint64(u32(req, abi.ReqOutcomesCount)|u32(req, abi.ReqValuesCount)|u32(req, abi.ReqServiceValuesCount)|u32(req, abi.ReqGroupsCount)|u32(req, abi.ReqStatesCount))
	outside := (text - behindZones) | (size - text - texts>>32*abi.StringSize) |
		(state - abi.ReqSize) | (size - state - uint64(u32(req, abi.ReqStateLength))) // negative if any of them is
	r := &in.req
	if other|outside>>63 == 0 {
		if r.base != req {
			r.base = req
		}
		r.offset, r.stride, r.count, r.badText = abi.ReqSize, abi.EndpointSize, uint32(n), false
	} else {
		if err := r.view(req, size); err != nil {
			return in.fail(abi.CodeBadRequest, err)
		}
		n = uint64(r.count)
	}

	plugin := in.plugin
	if handle := u32(req, abi.ReqSettings); uint64(handle) < uint64(len(in.plugins)) {
		plugin = in.plugins[handle]
	} else if handle != abi.NoSettings || plugin == nil {
		var err error
		if plugin, err = in.pluginFor(handle); err != nil {
			return in.fail(abi.CodeNotConfigured, err)
		}
	}

	a := &in.resp
	total := abi.RespSize + n*abi.ResultSize
	if total > room {
		return in.failNoRoom(n, total, room)
	}
	if a.buf != resp {
		a.buf = resp
	}
	a.count, a.set = uint32(n), 0
	if a.hasTail {
		a.reset()
	}
	if role := Role(u32(req, abi.ReqRole)); a.role != role {
		a.role = role
	}
	value := uintptr(abi.EndpointShare)
	if a.role <= RoleReduce {
		value = abi.EndpointCapacity
	}
	at, step, to := r.offset+value, r.stride, uintptr(abi.RespSize)
	for ; to+4*abi.ResultSize <= uintptr(total); to += 4 * abi.ResultSize { // unrolled: a loop iteration is expensive in wasm
		f, t := unsafe.Add(req, at), unsafe.Add(resp, to)
		putU64(t, abi.ResultValue, uint64(u32(f, 0))) // flags and shed 0
		putU64(t, abi.ResultResetAfter, resultDefaults)
		putU64(t, abi.ResultSize+abi.ResultValue, uint64(u32(f, step)))
		putU64(t, abi.ResultSize+abi.ResultResetAfter, resultDefaults)
		putU64(t, 2*abi.ResultSize+abi.ResultValue, uint64(u32(f, 2*step)))
		putU64(t, 2*abi.ResultSize+abi.ResultResetAfter, resultDefaults)
		putU64(t, 3*abi.ResultSize+abi.ResultValue, uint64(u32(f, 3*step)))
		putU64(t, 3*abi.ResultSize+abi.ResultResetAfter, resultDefaults)
		at += 4 * step
	}
	for ; to < uintptr(total); to += abi.ResultSize {
		putU64(unsafe.Add(resp, to), abi.ResultValue, uint64(u32(req, at)))
		putU64(unsafe.Add(resp, to), abi.ResultResetAfter, resultDefaults)
		at += step
	}

	if err := plugin.Decide(r, a); err != nil {
		return in.fail(abi.CodeFailed, err)
	}
	if r.badText {
		return in.fail(abi.CodeBadRequest, errTextOutside)
	}
	if err := a.misuse(); err != nil {
		return in.fail(abi.CodeFailed, err)
	}

	var stateArea, reasonsArea, groupsArea, statesArea uint64 // offset, and length or count
	if a.hasTail {
		end, code, err := a.writeTail(total, room)
		if err != nil {
			return in.fail(code, err)
		}
		if len(a.states) > 0 {
			statesArea = total | n<<32
		}
		reasonsArea = total + uint64(len(a.states)) | uint64(len(a.reasons))<<32
		groups := end - uint64(len(a.groups))*abi.GroupSize
		groupsArea = groups | uint64(len(a.groups))<<32
		stateArea = groups - uint64(len(a.state)+7)&^7 | uint64(len(a.state))<<32
		total = end
	}
	putU64(resp, abi.RespMagic, abi.ResponseMagic|total<<32)
	putU64(resp, abi.RespHeaderLength, abi.RespSize|abi.RespSize<<32) // the results follow the header
	putU64(resp, abi.RespResultsCount, n|abi.ResultSize<<32)
	putU64(resp, abi.RespRequeueAfter, uint64(a.requeue)|uint64(a.balance)<<32)
	putU64(resp, abi.RespStateOffset, stateArea)
	putU64(resp, abi.RespReasonsOffset, reasonsArea)
	putU64(resp, abi.RespGroupsOffset, groupsArea)
	putU64(resp, abi.RespStatesOffset, statesArea)
	putU64(resp, abi.RespCounter0, uint64(a.counters[0])|uint64(a.counters[1])<<32)
	putU64(resp, abi.RespCounter2, uint64(a.counters[2])|uint64(a.counters[3])<<32)
	return int64(total)
}

//go:noinline
func (in *instance) failShort(size uint64) int64 {
	return in.fail(abi.CodeBadRequest, errors.New("request: "+number(size)+" bytes, shorter than the header of "+number(abi.LeastRequest)))
}

//go:noinline
func (in *instance) failNoRoom(n, total, room uint64) int64 {
	return in.fail(abi.CodeNoRoom, errors.New("response: "+number(n)+" endpoints need "+number(total)+" bytes, the buffer has "+number(room)))
}

//go:noinline
func (in *instance) fail(code int64, err error) int64 {
	in.err = err
	return code
}

// number formats a number for an error. A module without package fmt is smaller by a quarter.
func number[T ~int | ~uint8 | ~uint16 | ~uint32 | ~uint64](n T) string {
	return strconv.FormatUint(uint64(n), 10)
}

func needsOf(p Plugin) uint32 {
	if n, ok := p.(Needer); ok {
		return uint32(n.Needs())
	}
	return 0
}

func keysOf(p Plugin) []string {
	if k, ok := p.(Keyer); ok {
		return k.Keys()
	}
	return nil
}

var (
	errTextOutside  = errors.New("request: a string is outside the request")
	errUnregistered = errors.New("package main does not call sdk.Register in an init function")
)
