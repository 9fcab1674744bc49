package wasm

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// maxReasonText is the length in bytes at which reasons are cut in errors.
const maxReasonText = 80

// diffResponses returns the first difference of two answers to a request, "" if they are equal.
func diffResponses(req *abi.Request, a, b *abi.Response) string {
	for i := range a.Results {
		if x, y := &a.Results[i], &b.Results[i]; *x != *y {
			return fmt.Sprintf("endpoint %s gets %s and %s", req.Endpoints[i].Addr, describe(x, y), describe(y, x))
		}
	}
	switch {
	case a.RequeueAfter != b.RequeueAfter:
		return fmt.Sprintf("requeue after %s and %s", a.RequeueAfter, b.RequeueAfter)
	case a.Balance != b.Balance:
		return fmt.Sprintf("balance %d and %d", a.Balance, b.Balance)
	case !slices.Equal(a.Groups, b.Groups):
		return fmt.Sprintf("groups with the parts %d and %d", a.Groups, b.Groups)
	case a.Counters != b.Counters:
		return fmt.Sprintf("counters %d and %d", a.Counters, b.Counters)
	case !bytes.Equal(a.EndpointStates, b.EndpointStates):
		return fmt.Sprintf("states of endpoints of %d and %d bytes, which differ at byte %d", len(a.EndpointStates), len(b.EndpointStates), firstDifference(a.EndpointStates, b.EndpointStates))
	case !bytes.Equal(a.State, b.State):
		return fmt.Sprintf("states of %d and %d bytes, which differ at byte %d", len(a.State), len(b.State), firstDifference(a.State, b.State))
	}
	return ""
}

// describe returns the value of a result, and what else differs from another result.
func describe(r, other *abi.Result) string {
	text := fmt.Sprintf("the value %d", r.Value)
	if r.Group != other.Group {
		text += fmt.Sprintf(" in group %d", r.Group)
	}
	if r.Reason != other.Reason {
		reason := r.Reason
		if len(reason) > maxReasonText {
			reason = reason[:maxReasonText]
		}
		text += " with the reason " + strconv.QuoteToASCII(reason)
	}
	if r.Flags != other.Flags {
		text += fmt.Sprintf(", flags %#x", r.Flags)
	}
	if r.ShedPermille != other.ShedPermille {
		text += fmt.Sprintf(", sheds %d ‰", r.ShedPermille)
	}
	switch {
	case r.ResetAfterMS == other.ResetAfterMS:
	case r.ResetAfterMS == abi.NeverReset:
		text += ", no reset"
	default:
		text += fmt.Sprintf(", a reset after %d ms", r.ResetAfterMS)
	}
	return text
}

func firstDifference(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
