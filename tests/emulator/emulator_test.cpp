// SPDX-License-Identifier: Apache-2.0
// The emulator itself, on kernels of a few lines.
#include <gmock/gmock.h>

#include <memory>
#include <stdexcept>

#include "emulator/block.h"

namespace fmmformer::emulator {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr unsigned kWarps = 2, kThreads = kWarps * kWarpSize;

/// Runs a kernel `test(out)` of the given body, one block of two warps; `out` has a number for
/// every thread. Keeps what Races found.
class EmulatorTest : public testing::Test {
 protected:
  void run(const std::string& body) {
    const std::string text =
        ".version 9.0\n.target sm_90a\n.address_size 64\n"
        ".visible .entry test(.param .u64 out)\n{\n"
        ".reg .pred %p<8>;\n.reg .b32 %r<16>;\n.reg .b64 %rd<8>;\n"
        ".shared .align 16 .b8 memory[1024];\n"
        "ld.param.u64 %rd0, [out];\nmov.u32 %r0, %tid.x;\n"
        "mul.wide.u32 %rd1, %r0, 4;\nadd.s64 %rd1, %rd0, %rd1;\n"
        "mov.u32 %r1, memory;\nshl.b32 %r2, %r0, 2;\nadd.u32 %r2, %r1, %r2;\n" +
        body + "\nret;\n}\n";
    // Kernels' instructions are parts of the text, by which races are told.
    modules_.push_back(std::make_unique<Module>(text));
    const uint64_t address = std::bit_cast<uint64_t>(&out_[0]);
    const Launch launch{.kernel = &modules_.back()->kernel("test"),
                        .block = {kThreads},
                        .parameters = reinterpret_cast<const unsigned char*>(&address)};
    Cluster(launch, {0, 0, 0}, &races_);
  }
  std::string error_of(const std::string& body) {
    try {
      run(body);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "none";
  }

  uint32_t out_[kThreads] = {};
  Races races_;

 private:
  std::vector<std::unique_ptr<Module>> modules_;
};

// A thread's number goes to its own place; everybody reads that of the thread 33 further.
constexpr const char* kWriteOwn = "st.shared.u32 [%r2], %r0;\n";
constexpr const char* kReadOther =
    "add.u32 %r3, %r0, 33;\nand.b32 %r3, %r3, 63;\nshl.b32 %r3, %r3, 2;\nadd.u32 %r3, %r1, %r3;\n"
    "ld.shared.u32 %r4, [%r3];\nst.global.u32 [%rd1], %r4;";

TEST_F(EmulatorTest, EveryThreadHasItsOwnNumbers) {
  run("mad.lo.u32 %r3, %r0, 3, 7;\nst.global.u32 [%rd1], %r3;");
  EXPECT_EQ(out_[0], 7u);
  EXPECT_EQ(out_[63], 63u * 3 + 7);
}

TEST_F(EmulatorTest, LanesThatPartMeetAgainBeforeTheyExchangeNumbers) {
  run("and.b32 %r3, %r0, 1;\nsetp.eq.u32 %p0, %r3, 0;\nmov.u32 %r4, 1;\n@%p0 bra even;\n"
      "mov.u32 %r4, 100;\neven:\n"
      "shfl.sync.bfly.b32 %r5|%p1, %r4, 1, 31, -1;\nst.global.u32 [%rd1], %r5;");
  EXPECT_EQ(out_[0], 100u);
  EXPECT_EQ(out_[1], 1u);
}

TEST_F(EmulatorTest, ALoopEndsForEachLaneInItsTurn) {
  run("mov.u32 %r3, 0;\nagain:\nadd.u32 %r3, %r3, 2;\nsetp.lt.u32 %p0, %r3, %r0;\n"
      "@%p0 bra again;\nst.global.u32 [%rd1], %r3;");
  EXPECT_EQ(out_[1], 2u);
  EXPECT_EQ(out_[9], 10u);
}

TEST_F(EmulatorTest, ABarrierPutsWritesBeforeReads) {
  run(std::string(kWriteOwn) + "bar.sync 0;\n" + kReadOther);
  EXPECT_EQ(out_[0], 33u);
  EXPECT_THAT(races_.found(), IsEmpty());
}

TEST_F(EmulatorTest, AReadWithoutABarrierIsARace) {
  run(std::string(kWriteOwn) + kReadOther);
  ASSERT_FALSE(races_.found().empty());
  EXPECT_THAT(races_.found()[0], HasSubstr("st.shared.u32 [%r2], %r0"));
}

TEST_F(EmulatorTest, AWriteWhereOthersMayStillReadIsARace) {
  run(std::string(kWriteOwn) + "bar.sync 0;\n" + kReadOther + "\nst.shared.u32 [%r2], 0;");
  ASSERT_FALSE(races_.found().empty());
  EXPECT_THAT(races_.found()[0], HasSubstr("st.shared.u32 [%r2], 0"));
}

// The first warp hands over what it wrote, the second waits for it.
constexpr const char* kHandOver =
    "setp.gt.u32 %p0, %r0, 31;\n@%p0 bra second;\nst.shared.u32 [%r2], %r0;\nbar.arrive 1, 64;\n"
    "bra.uni done;\nsecond:\n%s\nadd.u32 %r3, %r2, -128;\nld.shared.u32 %r4, [%r3];\n"
    "st.global.u32 [%rd1], %r4;\ndone:";
std::string hand_over(const std::string& wait) {
  std::string text = kHandOver;
  return text.replace(text.find("%s"), 2, wait);
}

TEST_F(EmulatorTest, WhoArrivesNeedNotWaitForThoseWhoDo) {
  run(hand_over("bar.sync 1, 64;"));
  EXPECT_EQ(out_[40], 8u);
  EXPECT_THAT(races_.found(), IsEmpty());
}

TEST_F(EmulatorTest, ABarrierForWhichNobodyWaitsOrdersNothing) {
  run(hand_over("bar.arrive 1, 64;"));
  EXPECT_FALSE(races_.found().empty());
}

TEST_F(EmulatorTest, ABarrierThatIsNeverReachedIsNamed) {
  EXPECT_THAT(error_of(hand_over("bar.sync 2, 64;")), HasSubstr("bar.sync 2, 64"));
}

// Sixteen bytes from the first thread's `out` to shared memory, by the copy engine.
std::string copy_in(const std::string& before_reading) {
  return "setp.ne.u32 %p0, %r0, 0;\nadd.u32 %r5, %r1, 512;\n@%p0 bra others;\n"
         "st.global.u32 [%rd1], 77;\nmbarrier.init.shared::cta.b64 [%r5], 1;\n"
         "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 16;\n"
         "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd0], 16, "
         "[%r5];\nothers:\nbar.sync 0;\n" +
         before_reading + "ld.shared.u32 %r4, [%r1];\nst.global.u32 [%rd1], %r4;";
}

TEST_F(EmulatorTest, WhoWaitsForAnEventMayReadWhatArrives) {
  run(
      copy_in("again:\nmbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], 0;\n"
              "@!%p1 bra again;\n"));
  EXPECT_EQ(out_[50], 77u);
  EXPECT_THAT(races_.found(), IsEmpty());
}

TEST_F(EmulatorTest, WhoDoesNotWaitForAnEventHasARace) {
  run(copy_in(""));
  EXPECT_FALSE(races_.found().empty());
}

TEST_F(EmulatorTest, AnEventThatNeverComesIsNamed) {
  EXPECT_THAT(error_of("setp.ne.u32 %p0, %r0, 0;\nadd.u32 %r5, %r1, 512;\n@%p0 bra others;\n"
                       "mbarrier.init.shared::cta.b64 [%r5], 1;\nothers:\nbar.sync 0;\n"
                       "again:\nmbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], 0;\n"
                       "@!%p1 bra again;\n"),
              HasSubstr("mbarrier.try_wait"));
}

// What the first warp wrote, to the second's `out`, by the copy engine.
std::string copy_out(const std::string& fence) {
  return std::string(kWriteOwn) + fence +
         "bar.sync 0;\nsetp.ne.u32 %p0, %r0, 32;\n@%p0 bra done;\n"
         "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 128;\n"
         "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;\ndone:";
}

TEST_F(EmulatorTest, WritesThatAreShownGoOutByTheCopyEngine) {
  run(copy_out("fence.proxy.async.shared::cta;\n"));
  EXPECT_EQ(out_[32 + 5], 5u);
  EXPECT_THAT(races_.found(), IsEmpty());
}

TEST_F(EmulatorTest, WritesThatAreNotShownToTheCopyEngineAreFound) {
  run(copy_out(""));
  ASSERT_FALSE(races_.found().empty());
  EXPECT_THAT(races_.found()[0], HasSubstr("not shown"));
}

TEST_F(EmulatorTest, AWriteToWhatTheCopyEngineStillReadsIsARace) {
  run(std::string(kWriteOwn) +
      "fence.proxy.async.shared::cta;\nbar.sync 0;\nsetp.ne.u32 %p0, %r0, 32;\n@%p0 bra done;\n"
      "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 128;\n"
      "cp.async.bulk.commit_group;\nst.shared.u32 [%r1], 1;\n"
      "cp.async.bulk.wait_group.read 0;\ndone:");
  ASSERT_FALSE(races_.found().empty());
  EXPECT_THAT(races_.found()[0], HasSubstr("may still be read"));
}

TEST_F(EmulatorTest, AProductOfAWarpIsThatOfTheMatrices) {
  // a: ones; b: ones in its first eight rows; so every number is 8.
  run("mov.b32 %r3, 0x3f803f80;\nmov.b32 %r4, 0;\nmov.b32 %r5, 0;\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r6,%r7,%r8,%r9}, "
      "{%r3,%r3,%r3,%r3}, {%r3,%r4}, {%r5,%r5,%r5,%r5};\nst.global.b32 [%rd1], %r8;");
  EXPECT_EQ(std::bit_cast<float>(out_[13]), 8.f);
}

TEST_F(EmulatorTest, RowsAndColumnsOfAProductAreWhereTheManualHasThem) {
  // a has its lane's number in the first register, b ones in the first two rows: of lane 4g + t,
  // row g is the sum of what lane 4g has, twice.
  run("and.b32 %r3, %r0, 31;\ncvt.rn.f32.u32 %r3, %r3;\ncvt.rn.bf16x2.f32 %r3, %r3, %r3;\n"
      "mov.b32 %r4, 0;\nand.b32 %r5, %r0, 3;\nsetp.eq.u32 %p0, %r5, 0;\n"
      "selp.b32 %r5, 0x3f803f80, 0, %p0;\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r6,%r7,%r8,%r9}, "
      "{%r3,%r4,%r4,%r4}, {%r5,%r4}, {%r4,%r4,%r4,%r4};\nst.global.b32 [%rd1], %r7;");
  EXPECT_EQ(std::bit_cast<float>(out_[0]), 0.f);
  EXPECT_EQ(std::bit_cast<float>(out_[13]), 24.f);
}

TEST_F(EmulatorTest, AMatrixThatIsLoadedTurnedHasItsColumnsAsRows) {
  // Number i of the matrix is i; lane 1 has of row 0, turned, elements 2 and 3: 16 and 24.
  run("setp.gt.u32 %p0, %r0, 31;\n@%p0 bra done;\nshl.b32 %r3, %r0, 1;\nadd.u32 %r4, %r3, 1;\n"
      "shl.b32 %r4, %r4, 16;\nor.b32 %r4, %r3, %r4;\nst.shared.u32 [%r2], %r4;\n"
      "bar.warp.sync -1;\nand.b32 %r5, %r0, 7;\nshl.b32 %r5, %r5, 4;\nadd.u32 %r5, %r1, %r5;\n"
      "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r6}, [%r5];\n"
      "st.global.b32 [%rd1], %r6;\ndone:");
  EXPECT_EQ(out_[1], 16u | 24u << 16);
}

TEST_F(EmulatorTest, ASumOfTwoWordsHasTheCarryOfItsOwnLane) {
  // -1, or 2^32 - 1, plus 1 in lane 0; plus 0 in the others.
  run("setp.eq.u32 %p0, %r0, 0;\nselp.u32 %r3, 1, 0, %p0;\nadd.cc.u32 %r4, %r3, -1;\n"
      "addc.u32 %r5, %r0, 10;\nst.global.u32 [%rd1], %r5;");
  EXPECT_EQ(out_[0], 11u);
  EXPECT_EQ(out_[1], 11u);
  EXPECT_EQ(out_[5], 15u);
}

TEST_F(EmulatorTest, ConstantPredicatesMayBeMinusOne) {
  run("setp.eq.u32 %p0, %r0, 3;\nxor.pred %p1, %p0, -1;\nselp.u32 %r3, 5, 6, %p1;\n"
      "st.global.u32 [%rd1], %r3;");
  EXPECT_EQ(out_[3], 6u);
  EXPECT_EQ(out_[4], 5u);
}

TEST_F(EmulatorTest, LanesThatEndAreNotWaitedFor) {
  run("setp.gt.u32 %p0, %r0, 15;\n@%p0 bra over;\nbra.uni here;\nover:\nret;\nhere:\n"
      "bar.warp.sync -1;\nst.global.u32 [%rd1], 9;");
  EXPECT_EQ(out_[15], 9u);
  EXPECT_EQ(out_[16], 0u);
}

TEST_F(EmulatorTest, AStoreOfTheCopyEngineThatNobodyAwaitsIsFound) {
  run(std::string(kWriteOwn) +
      "fence.proxy.async.shared::cta;\nbar.sync 0;\nsetp.ne.u32 %p0, %r0, 32;\n@%p0 bra done;\n"
      "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 128;\ndone:");
  ASSERT_FALSE(races_.found().empty());
  EXPECT_THAT(races_.found()[0], HasSubstr("still under way"));
}

TEST_F(EmulatorTest, AWaitOfAnotherLaneDoesNotEndAStore) {
  run(std::string(kWriteOwn) +
      "fence.proxy.async.shared::cta;\nbar.sync 0;\nsetp.ne.u32 %p0, %r0, 32;\n@%p0 bra others;\n"
      "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 128;\n"
      "cp.async.bulk.commit_group;\nbra.uni done;\nothers:\n"
      "cp.async.bulk.wait_group.read 0;\ndone:");
  EXPECT_FALSE(races_.found().empty());
}

constexpr const char* kAddTogether = "red.shared.add.u32 [%r1], 1;\n";
constexpr const char* kReadSum = "ld.shared.u32 %r4, [%r1];\nst.global.u32 [%rd1], %r4;";
constexpr const char* kClear = "st.shared.u32 [%r1], 0;\n";

TEST_F(EmulatorTest, AtomicOperationsNeedNoOrderAmongThemselves) {
  run(std::string(kClear) + "bar.sync 0;\n" + kAddTogether + "bar.sync 0;\n" + kReadSum);
  EXPECT_EQ(out_[0], kThreads);
  EXPECT_THAT(races_.found(), IsEmpty());
}

TEST_F(EmulatorTest, WhoReadsWhatOthersChangeNeedsABarrier) {
  run(std::string(kClear) + "bar.sync 0;\n" + kAddTogether + kReadSum);
  EXPECT_FALSE(races_.found().empty());
}

// The first warp writes, then counts one; the second reads when it sees that. The count is a number
// further on in shared memory, 0 before.
constexpr const char* kCountAndAsk =
    "add.u32 %r5, %r1, 512;\nst.shared.u32 [%r5], 0;\nbar.sync 0;\nsetp.gt.u32 %p0, %r0, 31;\n"
    "@%p0 bra second;\nst.shared.u32 [%r2], %r0;\nbar.warp.sync -1;\nsetp.ne.u32 %p1, %r0, 0;\n"
    "@%p1 bra done;\nred.{how}.cta.shared::cta.add.u32 [%r5], 1;\nbra.uni done;\nsecond:\n"
    "again:\nld.acquire.cta.shared::cta.u32 %r4, [%r5];\nsetp.eq.u32 %p2, %r4, 0;\n"
    "@%p2 bra again;\nadd.u32 %r3, %r2, -128;\nld.shared.u32 %r4, [%r3];\n"
    "st.global.u32 [%rd1], %r4;\ndone:";

TEST_F(EmulatorTest, WhoSeesACountWithReleaseSeesWhatWasWrittenBefore) {
  std::string text = kCountAndAsk;
  run(text.replace(text.find("{how}"), 5, "release"));
  EXPECT_EQ(out_[40], 8u);
  EXPECT_THAT(races_.found(), IsEmpty());
}

TEST_F(EmulatorTest, WhoWritesTheSameAsAnotherIsInNoRace) {
  run("st.shared.u32 [%r1], 7;\n" + std::string(kReadSum));
  EXPECT_EQ(out_[40], 7u);
  EXPECT_THAT(races_.found(), IsEmpty());
}

TEST_F(EmulatorTest, AnEventMustBeThereForThoseWhoWaitForIt) {
  run("setp.ne.u32 %p0, %r0, 0;\nadd.u32 %r5, %r1, 512;\n@%p0 bra others;\n"
      "mbarrier.init.shared::cta.b64 [%r5], 1;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 0;\nothers:\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], 0;\n@!%p1 bra again;\n");
  EXPECT_FALSE(races_.found().empty());
}

TEST_F(EmulatorTest, AnUnknownInstructionIsNamedWhenItIsReached) {
  EXPECT_THAT(error_of("frobnicate.b32 %r3, %r0;"), HasSubstr("frobnicate.b32 %r3, %r0"));
  EXPECT_EQ(error_of("bra.uni over;\nfrobnicate.b32 %r3, %r0;\nover:"), "none");
}

TEST_F(EmulatorTest, AnAddressBeyondSharedMemoryIsAnError) {
  EXPECT_THAT(error_of("ld.shared.u32 %r3, [%r1+4096];"), HasSubstr("not in shared memory"));
}

TEST_F(EmulatorTest, AnAddressThatIsNotAlignedIsAnError) {
  EXPECT_THAT(error_of("ld.shared.u32 %r3, [%r1+2];"), HasSubstr("not aligned"));
}

}  // namespace
}  // namespace fmmformer::emulator
