package manifest

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"
)

// Example returns settings that the schema permits: the defaults, and some value of each field that is required.
func (m *Manifest) Example() map[string]json.RawMessage { return example(m.Settings) }

func example(fields []Setting) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for i := range fields {
		if f := &fields[i]; f.Default != nil {
			out[f.Name] = f.Default
		} else if f.Required {
			out[f.Name] = f.example()
		}
	}
	return out
}

func (s *Setting) example() json.RawMessage {
	least, most, _ := s.bounds()
	switch s.Type {
	case Boolean:
		return json.RawMessage("true")
	case Text:
		if len(s.Values) > 0 {
			return encode(s.Values[len(s.Values)-1])
		}
		return encode(string(slices.Repeat([]byte{'x'}, int(max(least, min(most, 1))))))
	case List:
		return encode(slices.Repeat([]json.RawMessage{s.Items.example()}, int(max(least, 0))))
	case Map:
		out := map[string]json.RawMessage{}
		for i := range int(least) {
			out["x"+strconv.Itoa(i)] = s.Items.example()
		}
		return encode(out)
	case Object:
		return encode(example(s.Fields))
	}
	return s.number(max(least, min(most, 1)))
}

// number returns a quantity as a value of the type.
func (s *Setting) number(n float64) json.RawMessage {
	if s.Type == Duration {
		d, unit, name := time.Duration(n), time.Millisecond, "ms"
		for u, long := range map[time.Duration]string{time.Second: "s", time.Minute: "m", time.Hour: "h"} {
			if d%u == 0 && u > unit {
				unit, name = u, long
			}
		}
		return encode(strconv.FormatInt(int64(d/unit), 10) + name)
	}
	return json.RawMessage(strconv.FormatFloat(n, 'f', -1, 64))
}

// Samples returns values at the edges of what the schema permits, and others that it refuses: beyond them, and of other types.
func (s *Setting) Samples() (inside, outside []json.RawMessage) {
	for _, v := range []string{"true", `"no such value"`, "-12345.5", "[1]", `{"no such name": 1}`} {
		c := checker{most: 1}
		if c.value(s, json.RawMessage(v), ""); len(c.problems) > 0 {
			outside = append(outside, json.RawMessage(v))
		}
	}
	least, most, _ := s.bounds()
	step := 1.0
	switch s.Type {
	case Number, Percent:
		step = 0.0001
	case Duration:
		step = float64(time.Second)
	case Integer:
	default:
		return inside, outside
	}
	if s.Min != nil || s.Type == Percent {
		inside, outside = append(inside, s.number(least)), append(outside, s.number(least-step))
	}
	if s.Max != nil || s.Type == Percent {
		inside, outside = append(inside, s.number(most)), append(outside, s.number(most+step))
	}
	return inside, outside
}

func encode(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage("null") // impossible: all values are of the schema
	}
	return b
}
