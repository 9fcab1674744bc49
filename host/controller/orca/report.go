package orca

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Bounds of a report.
const (
	MaxValues = 32   // further ones are left out
	maxNames  = 1024 // entries of maps that are looked at
	maxNumber = 999_999_999_999
)

// Report is what an endpoint reports: numbers of at least 0 by the names that plugins declare (abi.KeyLoad). Omitted is the
// number of values that are left out: names that plugins cannot declare, numbers that are none, and those beyond MaxValues.
type Report struct {
	Values  map[string]float64
	Omitted int
}

// Fields of xds.data.orca.v3.OrcaLoadReport, by their numbers.
var (
	numbers = map[protowire.Number]string{1: "cpu_utilization", 2: "mem_utilization", 6: "rps_fractional", 7: "eps", 9: "application_utilization"}
	maps    = map[protowire.Number]string{5: "utilization/", 8: "named_metrics/"}
)

// errTruncated is the error of a message that ends within a field.
var errTruncated = errors.New("a report that is no protobuf message")

// Parse parses a report. Unknown fields are ignored.
func Parse(b []byte) (*Report, error) {
	r := &Report{Values: map[string]float64{}}
	names := 0
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, errTruncated
		}
		b = b[n:]
		switch {
		case kind == protowire.Fixed64Type && numbers[num] != "":
			bits, n := protowire.ConsumeFixed64(b)
			if n < 0 {
				return nil, errTruncated
			}
			b = b[n:]
			r.set(numbers[num], math.Float64frombits(bits))
		case kind == protowire.BytesType && maps[num] != "":
			entry, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return nil, errTruncated
			}
			b = b[n:]
			if names++; names > maxNames {
				return nil, fmt.Errorf("a report with more than %d named values", maxNames)
			}
			name, value, err := parseEntry(entry)
			if err != nil {
				return nil, err
			}
			r.set(maps[num]+name, value)
		default:
			n := protowire.ConsumeFieldValue(num, kind, b)
			if n < 0 {
				return nil, errTruncated
			}
			b = b[n:]
		}
	}
	return r, nil
}

// parseEntry parses an entry of a map from names to numbers.
func parseEntry(b []byte) (name string, value float64, err error) {
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return "", 0, errTruncated
		}
		b = b[n:]
		switch {
		case num == 1 && kind == protowire.BytesType:
			text, m := protowire.ConsumeBytes(b)
			name, n = string(text), m
		case num == 2 && kind == protowire.Fixed64Type:
			bits, m := protowire.ConsumeFixed64(b)
			value, n = math.Float64frombits(bits), m
		default:
			n = protowire.ConsumeFieldValue(num, kind, b)
		}
		if n < 0 {
			return "", 0, errTruncated
		}
		b = b[n:]
	}
	return name, value, nil
}

// set sets a value, unless it is one to leave out. The last one of a name counts.
func (r *Report) set(name string, value float64) {
	_, known := r.Values[name]
	if !abi.IsLoadName(name) || !(value >= 0 && value <= maxNumber) || !known && len(r.Values) == MaxValues {
		r.Omitted++
		return
	}
	r.Values[name] = value
}

// least is the least number above 0 that Text writes.
const least = 1e-6

// Text writes a number with two significant digits and without an exponent.
func Text(n float64) string {
	if n < least {
		return "0"
	}
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(n, 'e', 1, 64), 64)
	return strconv.FormatFloat(min(rounded, maxNumber), 'f', -1, 64)
}
