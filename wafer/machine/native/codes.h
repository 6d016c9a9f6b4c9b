// The numbers of wafer/machine/codes.py, and the rows of image.py.
#pragma once
#include <cstdint>

namespace wafer::csl {

constexpr int kDeepestCall = 64;
enum class Type : int32_t { kI8, kI16, kI32, kI64, kU8, kU16, kU32, kU64, kF16, kF32, kBool };
enum class Op : int32_t {
  kConst, kCopy, kAdd, kSub, kMul, kDiv, kRem, kAnd, kOr, kXor, kShl, kShr, kNeg, kInvert, kNot,
  kEq, kNe, kLt, kLe, kGt, kGe, kCast, kLoad, kStore, kMove, kJump, kJumpIf, kJumpUnless, kCall,
  kCallAt, kReturn, kActivate, kBlock, kUnblock, kDsdSet, kDsdGet, kLoadDsr, kDsrGet, kDsrBase,
  kOperate, kElement, kReceive, kSend, kConfigGet, kConfigSet, kIntrinsic, kFault, kWait
};
enum class Intrinsic : int32_t {
  kSqrt, kExp, kLog, kSin, kCos, kTanh, kFloor, kCeil, kRandom16, kSeed, kTimer, kTimestamp,
  kCoordinate, kNextCommand, kPrint, kFifoLength, kQueueFlush, kTeardownExit
};
enum class Gate : int32_t { kLocal, kData, kColor, kInputQueue, kThread };
enum class Action : int32_t { kNone, kActivate, kUnblock };
enum class Operand : uint8_t { kNone, kMemory, kShaped, kFabric, kFifo, kDsr, kScalar, kPointer };
enum class DsdOp : uint8_t {
  kFadds, kFsubs, kFmuls, kFmaxs, kFaddh, kFsubh, kFmulh, kFmaxh, kFaddhs, kFmacs, kFmach,
  kFmachs, kFmovs, kFmovh, kMov16, kMov32, kFnegs, kFnegh, kFabss, kFabsh, kFs2H, kFh2S, kFs2Xp16,
  kFh2Xp16, kXp162Fs, kXp162Fh, kAdd16, kAddc16, kSub16, kAnd16, kOr16, kXor16, kSll16, kSlr16,
  kSar16, kClz, kCtz, kPopcnt, kFnorms, kFnormh, kFscales, kFscaleh, kDfilt, kAdd32, kSub32,
  kMul32, kMac32, kMax32
};

struct Instruction {
  Op op : 8;
  int32_t cycles : 24;  // that it costs
  int32_t type, a, b, c;  // type of a jump with a condition: cycles more if it is taken
};

struct OperationRow {
  int32_t op, dest, src0, src1, scalar, asynchronous, action, target, control_ends,
      control_action, control_target, thread, priority, index, simd;
  int32_t bytes[4];  // of an element of dest, src0, src1, scalar: see setup.py
};
struct FabricRow {
  int32_t sends, queue, color, control, advances, indexed, priority, simd, clears, control_ends,
      control_action, control_target, transform;
};
struct FifoRow {
  int32_t address, bytes, push_task, pop_task, priority, empty_ends, full_ends;
};
struct ShapeRow {
  int32_t n0, n1, n2, n3, s0, s1, s2, s3;
};
struct DsrRow {
  int32_t file, id, kind, asynchronous, action, target, control_ends, control_action,
      control_target, thread, saves_address, single_step;
};
struct QueueRow {
  int32_t color, priority, entry, limit, turn;
};
struct FilterRow {
  int32_t kind, counts_data, counts_control, start, most, limit1, limit2, controls_filtered, low,
      high;
};

}  // namespace wafer::csl
