#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

namespace kvasir {
namespace {

Error some_error() { return {ErrorCode::kNotFound, "here: nothing; got 0, want 1"}; }

TEST(Result, HoldsAValue) {
  Result<int> result = 7;
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(*result, 7);
  *result = 8;
  EXPECT_EQ(result.value(), 8);
}

TEST(Result, HoldsAnError) {
  const Result<std::string> result = some_error();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(result.error().message, "here: nothing; got 0, want 1");
}

TEST(Result, MovesAMoveOnlyValueOut) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
  EXPECT_EQ(**result, 5);
  const std::unique_ptr<int> value = *std::move(result);
  EXPECT_EQ(*value, 5);
}

TEST(Result, ArrowReachesMembers) {
  const Result<std::string> result = std::string("abc");
  EXPECT_EQ(result->size(), 3u);
}

TEST(ResultDeathTest, ReadingTheWrongSideIsABugOfOurs) {
  const Result<int> failed = some_error();
  EXPECT_DEATH((void)*failed, "broken invariant");
  const Result<int> fine = 1;
  EXPECT_DEATH((void)fine.error(), "broken invariant");
  const Status ok;
  EXPECT_DEATH((void)ok.error(), "broken invariant");
}

TEST(Status, IsFineByDefault) {
  EXPECT_TRUE(Status());
  const Status failed = some_error();
  EXPECT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kNotFound);
}

Result<int> half(int value) {
  if (value % 2 != 0) return Error{ErrorCode::kInvalidArgument, "half: odd"};
  return value / 2;
}

Result<int> quarter(int value) {
  KVASIR_ASSIGN_OR_RETURN(const int once, half(value));
  KVASIR_ASSIGN_OR_RETURN(const int twice, half(once));
  return twice;
}

Status check_even(int value) {
  KVASIR_RETURN_IF_ERROR(half(value));
  return {};
}

TEST(ResultMacros, AssignOrReturnPassesValuesAndErrorsOn) {
  EXPECT_EQ(*quarter(12), 3);
  EXPECT_EQ(quarter(6).error().message, "half: odd");
}

TEST(ResultMacros, ReturnIfErrorPassesErrorsOn) {
  EXPECT_TRUE(check_even(2));
  EXPECT_FALSE(check_even(3));
}

}  // namespace
}  // namespace kvasir
