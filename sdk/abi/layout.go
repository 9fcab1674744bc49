package abi

import "strconv"

// The wire form. ../ABI.md specifies every field; a test compares its tables with the offsets and sizes below. Everything is
// little-endian. Headers, records and sections are 8-byte aligned, and so must be the buffers that sluice_alloc returns. Offsets
// are in bytes from the start of the message. Minor versions append fields to headers or records and increase the header length
// or stride: read by those, not by the sizes below.

// The first four bytes of a message: "SLRQ" and "SLRP".
const (
	RequestMagic  = 0x51524C53
	ResponseMagic = 0x50524C53
)

// Offsets in the request header, and its length.
const (
	ReqMagic               = 0
	ReqMajor               = 4
	ReqMinor               = 6
	ReqTotal               = 8
	ReqHeaderLength        = 12
	ReqNow                 = 16
	ReqGeneration          = 24
	ReqNamespace           = 32
	ReqService             = 36
	ReqPortName            = 40
	ReqNode                = 44
	ReqZone                = 48
	ReqPort                = 52
	ReqProtocol            = 54
	ReqFamily              = 55
	ReqPool                = 56
	ReqPolicy              = 57
	ReqZoneIndex           = 58
	ReqSettings            = 60
	ReqSessionAffinity     = 64
	ReqEndpointsOffset     = 72
	ReqEndpointsCount      = 76
	ReqEndpointsStride     = 80
	ReqZonesOffset         = 84
	ReqZonesCount          = 88
	ReqZonesStride         = 92
	ReqStringsOffset       = 96
	ReqStringsCount        = 100
	ReqStringsStride       = 104
	ReqStateOffset         = 108
	ReqStateLength         = 112
	ReqNodeIndex           = 116
	ReqNodeCount           = 120
	ReqConnectionsAge      = 124
	ReqOutcomesWindow      = 128
	ReqOutcomesOffset      = 132
	ReqOutcomesCount       = 136
	ReqOutcomesStride      = 140
	ReqValuesOffset        = 144
	ReqValuesCount         = 148
	ReqValuesStride        = 152
	ReqPodKeys             = 156
	ReqServiceValuesOffset = 160
	ReqServiceValuesCount  = 164
	ReqGroupsOffset        = 168
	ReqGroupsCount         = 172
	ReqGroupsStride        = 176
	ReqRole                = 180
	ReqStatesOffset        = 184
	ReqStatesCount         = 188
	ReqStatesStride        = 192
	ReqSize                = 200

	LeastRequest = 184 // header of version 2.0
)

// NoZone is the index of a zone that is not in the zone table.
const NoZone = 0xFFFF

// Bits of the request's policy field.
const (
	PolicyInternalLocal = 1 << 0
	PolicyExternalLocal = 1 << 1
)

// Offsets in an endpoint record, and its stride.
const (
	EndpointAddr             = 0
	EndpointPort             = 16
	EndpointZoneIndex        = 18
	EndpointConditions       = 20
	EndpointNode             = 24
	EndpointZone             = 28
	EndpointCapacity         = 32
	EndpointShare            = 36
	EndpointReadySince       = 40
	EndpointTerminatingSince = 48
	EndpointConnections      = 56
	EndpointPod              = 60
	EndpointPriorWeight      = 64
	EndpointGroup            = 68
	EndpointSize             = 72
)

// Offsets in a group record, and its stride.
const (
	GroupPart = 0
	GroupSize = 8
)

// Offsets in a zone record, and its stride.
const (
	ZoneName     = 0
	ZoneNodes    = 4
	ZoneReady    = 8
	ZoneServing  = 12
	ZoneTotal    = 16
	ZoneMilliCPU = 24
	ZoneSize     = 32
)

// Offsets in an outcomes record, and its stride.
const (
	OutcomesAttempts        = 0
	OutcomesAnswered        = 4
	OutcomesRefused         = 8
	OutcomesUnanswered      = 12
	OutcomesTotalAttempts   = 16
	OutcomesTotalAnswered   = 24
	OutcomesTotalRefused    = 32
	OutcomesTotalUnanswered = 40
	OutcomesSince           = 48
	OutcomesSize            = 56
)

// ValueSize is the size of a value: a string id, or AbsentString.
const ValueSize = 4

// ValuesStride returns the stride of the values of endpoints for a number of Pod keys.
func ValuesStride(keys int) int { return align(keys * ValueSize) }

func align(n int) int { return (n + 7) &^ 7 }

// Offsets in a string record, and its stride.
const (
	StringID     = 0
	StringOffset = 4
	StringLength = 8
	StringSize   = 16
)

// Offsets in the response header, and its length.
const (
	RespMagic         = 0
	RespTotal         = 4
	RespHeaderLength  = 8
	RespResultsOffset = 12
	RespResultsCount  = 16
	RespResultsStride = 20
	RespRequeueAfter  = 24
	RespBalance       = 28
	RespStateOffset   = 32
	RespStateLength   = 36
	RespReasonsOffset = 40
	RespReasonsCount  = 44
	RespGroupsOffset  = 48
	RespGroupsCount   = 52
	RespStatesOffset  = 56
	RespStatesCount   = 60
	RespCounter0      = 64
	RespCounter1      = 68
	RespCounter2      = 72
	RespCounter3      = 76
	RespSize          = 80

	LeastResponse = 56 // header of version 2.0
)

// Offsets in a result record, and its stride.
const (
	ResultValue      = 0
	ResultFlags      = 4
	ResultShed       = 6
	ResultResetAfter = 8
	ResultReason     = 12
	ResultGroup      = 14
	ResultSize       = 16
)

// Offsets in a reason record, and its size.
const (
	ReasonOffset = 0
	ReasonLength = 4
	ReasonSize   = 8
)

// Limits of reasons. See also MaxReasonsLen.
const (
	MaxReasonLen   = 256 // bytes of one reason
	MaxReasonCount = 256 // reasons in a response
)

// MaxResponse returns the size of the longest response for n endpoints, in bytes: the capacity of the buffer that a host
// passes to sluice_decide.
func MaxResponse(n int) int {
	return RespSize + n*(ResultSize+MaxEndpointState) + MaxStateLen + MaxReasonCount*ReasonSize + MaxReasonsLen + MaxGroups*GroupSize
}

// Error codes of sluice_decide, sluice_configure, sluice_needs and sluice_keys; the message goes through sluice.log. Other
// negative numbers are errors too.
const (
	CodeFailed        = -1 // the plugin returned an error
	CodeBadRequest    = -2 // the request could not be read
	CodeNoRoom        = -3 // the result does not fit the buffer
	CodeNotConfigured = -4 // the settings handle is unknown, or the plugin needs settings and there are none
)

// CodeText returns a human-readable text for an error code.
func CodeText(code int64) string {
	switch code {
	case CodeFailed:
		return "the plugin returned an error"
	case CodeBadRequest:
		return "the plugin could not read the request"
	case CodeNoRoom:
		return "the result does not fit the buffer"
	case CodeNotConfigured:
		return "the plugin is not configured"
	}
	return "error code " + strconv.FormatInt(code, 10)
}

// Levels of sluice.log.
const (
	LogDebug = 0
	LogInfo  = 1
	LogWarn  = 2
	LogError = 3
)

// MaxLogLen is the longest log message in bytes; hosts may truncate longer ones.
const MaxLogLen = 1024
